// Twenty subagents say 25 pieces a second each, and the page keeps up: each frame shows what came since the last one, and an
// agent's words change once in it. Frames are compared, not seconds, so that a busy machine makes the test slower and not
// wrong. ADJUTANT_TEST_FRAMES=1 also judges the times of the frames, for a machine that does nothing else.

import { assert, calls, play, says, script, task } from "./harness.mjs";

const AGENTS = 20;
const WORDS = 250;

await play(async (tab) => {
  const { page } = tab;
  await tab.open("/chat?assistant=agent");
  const words = Array.from({ length: WORDS }, (_, index) => `w${index} `).join("");
  const part = JSON.stringify({ script: [says(words)], delay_ms: 40, first_ms: 500 });
  const all = Array.from({ length: AGENTS }, (_, index) => task(`t${index}`, "researcher", part));
  const message = page.getByRole("textbox", { name: /^Message to/ });
  await message.fill(script(calls(...all), says("All is known.")));
  await message.press("Enter");
  await tab.until("all are at work", (wanted) => [...document.querySelectorAll(".subagent-tail")].filter((tail) => tail.textContent.includes("w1 ")).length === wanted, AGENTS);

  // Watches the page until the end: its frames, its long tasks, and what changes in it.
  await page.evaluate(() => {
    const watched = { frames: [], long: [], changes: 0, most: 0, growth: new Map() };
    globalThis.watched = watched;
    let last = performance.now();
    let changes = 0;
    new MutationObserver((records) => {
      // Each agent's words are one text; it may change once in a frame.
      for (const { target } of records) {
        const tail = target.parentElement?.closest(".subagent-tail");
        if (!tail) continue;
        changes += 1;
        watched.growth.set(tail, (watched.growth.get(tail) ?? 0) + 1);
      }
    }).observe(document.querySelector(".messages"), { subtree: true, characterData: true, childList: true });
    new PerformanceObserver((list) => watched.long.push(...list.getEntries().map(({ duration }) => Math.round(duration)))).observe({ type: "longtask" });
    const frame = (now) => {
      watched.frames.push(now - last);
      watched.most = Math.max(watched.most, changes);
      watched.changes += changes;
      changes = 0;
      last = now;
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  });
  await page.getByRole("article").getByText("All is known.", { exact: true }).waitFor();
  const seen = await page.evaluate(() => {
    const { frames, long, changes, most, growth } = globalThis.watched;
    const sorted = [...frames].sort((one, other) => one - other);
    const at = (part) => Math.round(sorted[Math.floor((sorted.length - 1) * part)]);
    return { frames: frames.length, median: at(0.5), p95: at(0.95), worst: at(1), long, changes, most, agents: [...growth.values()] };
  });
  console.log(JSON.stringify(seen));

  // All twenty were seen to speak, piece by piece: in at least every eighth frame, however long the machine takes for one.
  assert.equal(seen.agents.length, AGENTS);
  const pieces = Math.min(...seen.agents);
  assert.ok(pieces >= Math.min(seen.frames / 8, WORDS / 20), `an agent's words came in ${pieces} pieces in ${seen.frames} frames`);
  // In one frame the words of an agent change once at most.
  assert.ok(seen.most <= AGENTS, `${seen.most} changes in one frame`);
  if (process.env.ADJUTANT_TEST_FRAMES === "1") {
    // 250 pieces of 40 ms are 10 s, in which an idle machine draws 600 frames.
    assert.ok(seen.frames >= 100, `only ${seen.frames} frames`);
    assert.ok(seen.median <= 100, `a frame takes ${seen.median} ms`);
  }
});
