// How a page has to look, whatever it shows: accessible in both themes, and no wider than the screen of a telephone.
export async function looks(tab) {
  for (const scheme of ["light", "dark"]) {
    await tab.scheme(scheme);
    // The colours of the other theme are there with the next frame.
    await tab.page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))));
    await tab.isAccessible();
  }
  await tab.narrow();
  await tab.isAccessible();
  await tab.fits();
  await tab.scheme("light");
  await tab.wide();
}
