// Bundles the page with esbuild and the compiler of Svelte.

import { readFile } from "node:fs/promises";
import { basename } from "node:path";

// Compiles components, and modules with runes such as those of `@langchain/svelte`.
export const svelte = ({ compile, compileModule }) => ({
  name: "svelte",
  setup: (build) => build.onLoad({ filter: /\.svelte(\.js)?$/ }, async ({ path }) => {
    const compiler = path.endsWith(".js") ? compileModule : compile;
    const { js, warnings } = compiler(await readFile(path, "utf8"), { filename: basename(path), generate: "client" });
    return { contents: js.code, warnings: warnings.filter(() => !path.includes("node_modules")).map(({ message }) => ({ text: message })) };
  }),
});

if (process.argv[1] === import.meta.filename) {
  const [{ build }, compiler] = await Promise.all([import("esbuild"), import("svelte/compiler")]);
  await build({
    entryPoints: ["src/main.js"], bundle: true, format: "esm", minify: true, conditions: ["svelte", "browser"],
    outfile: "dist/main.js", plugins: [svelte(compiler)],
  });
}
