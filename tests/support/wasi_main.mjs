// node wasi_main.mjs PROGRAM.wasm ARGUMENTS...: runs a program for WASI, whose files are all.
import { readFileSync } from "node:fs";
import { WASI } from "node:wasi";

const [program, ...rest] = process.argv.slice(2);
const wasi = new WASI({ version: "preview1", args: [program, ...rest], preopens: { "/": "/" } });
const imports = { wasi_snapshot_preview1: wasi.wasiImport };
const { instance } = await WebAssembly.instantiate(readFileSync(program), imports);
process.exitCode = wasi.start(instance);
