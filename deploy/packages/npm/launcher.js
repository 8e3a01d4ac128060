#!/usr/bin/env node
// Starts the program of this platform, hands signals on to it, and ends as it ends.

const { spawn } = require("node:child_process");
const { constants } = require("node:os");

function find() {
  const name = `adjutant-${process.platform}-${process.arch}`;
  for (const candidate of [name, `${name}-musl`]) {
    try {
      return require.resolve(`${candidate}/bin/adjutant`);
    } catch {
      // It is not installed: npm leaves out packages of other platforms.
    }
  }
  console.error(`adjutant: there is no program for ${process.platform} on ${process.arch}: the package ${name} is not installed.`);
  console.error("adjutant: npm leaves it out with --omit=optional; other platforms build it from source.");
  process.exit(1);
}

const child = spawn(find(), process.argv.slice(2), { stdio: "inherit" });
// A terminal sends Ctrl-C to both processes, and a second one would stop the server by force.
const hasTerminal = [process.stdin, process.stdout, process.stderr].some((stream) => stream.isTTY);
const ofTerminals = ["SIGINT", "SIGQUIT"];
for (const signal of [...ofTerminals, "SIGTERM", "SIGHUP"]) {
  process.on(signal, () => {
    if (!(hasTerminal && ofTerminals.includes(signal))) child.kill(signal);
  });
}
// npx ends by a signal without handing it on. What it leaves behind would hold the port.
if (process.env.npm_command === "exec") {
  const parent = process.ppid;
  setInterval(() => process.ppid !== parent && child.kill("SIGTERM"), 250).unref();
}
child.on("error", (error) => {
  console.error(`adjutant: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => process.exit(code ?? 128 + (constants.signals[signal] ?? 0)));
