// node web_run.mjs NETWORK.js INPUTS.json: prints what runs on each of the given inputs give, or throw.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [script, given] = process.argv.slice(2);
const { load } = await import(pathToFileURL(script));
const { asked, reset } = JSON.parse(readFileSync(given, "utf8"));
const number = (value) => (typeof value === "bigint" ? Number(value) : value);
const arrayOf = ([kind, values]) =>
  kind === "Array" ? values : new globalThis[kind](kind.startsWith("Big") ? values.map(BigInt) : values);

const net = await load();
const said = [];
for (const inputs of asked) {
  const arrays = Array.isArray(inputs)
    ? arrayOf(inputs)
    : Object.fromEntries(Object.entries(inputs).map(([name, array]) => [name, arrayOf(array)]));
  try {
    const results = Object.entries(net.run(arrays));
    said.push(Object.fromEntries(results.map(([name, array]) => [name, Array.from(array, number)])));
  } catch (error) {
    said.push(`${error.name}: ${error.message}`);
  }
  if (reset) net.reset();
}
console.log(JSON.stringify({ said, inputs: net.inputs, outputs: net.outputs }));
