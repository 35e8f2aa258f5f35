// Draws a moving shape, classifies every frame by the network beside this page, shows times.
import { load } from "./net/shapes.js";
import { SHAPES, SIZE } from "./shapes.js";

const NAMES = Object.keys(SHAPES);
const SHOWN = 1.2; // seconds that a shape is shown
const KEPT = 1000; // times of runs that the table counts
const NOISE = 0.04; // the standard deviation of a pixel, of 1
const element = (id) => document.getElementById(id);
const canvas = element("picture");
const small = Object.assign(document.createElement("canvas"), { width: SIZE, height: SIZE });
const context = small.getContext("2d", { willReadFrequently: true });
const picture = new Float32Array(SIZE * SIZE);

const gray = (level) => `rgb(${Array(3).fill(Math.round(255 * level)).join(" ")})`;
const ms = (time, digits = 0) => `${time.toFixed(digits)} ms`;

function normal() {
  return Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
}

// Draw the shape of a time in seconds on a canvas; returns its name.
function draw(target, seconds) {
  const turn = Math.floor(seconds / SHOWN);
  const name = NAMES[turn % NAMES.length];
  const inverse = Math.floor(turn / NAMES.length) % 2;
  const [shade, ground] = inverse ? [0.15, 0.8] : [0.85, 0.15];
  const radius = 0.32 + 0.08 * Math.sin(1.3 * seconds);
  const room = 0.9 * (0.5 - radius);
  const out = target.getContext("2d");
  out.save();
  out.scale(target.width, target.height);
  const light = out.createLinearGradient(0, 0, 1, 0);
  light.addColorStop(0, gray(ground - 0.06));
  light.addColorStop(1, gray(ground + 0.06));
  out.fillStyle = light;
  out.fillRect(0, 0, 1, 1);
  out.translate(0.5 + room * Math.sin(1.7 * seconds), 0.5 + room * Math.cos(2.3 * seconds));
  out.rotate(0.9 * seconds);
  out.scale(radius, radius);
  out.beginPath();
  for (const [x, y] of SHAPES[name]) out.lineTo(x, y);
  out.closePath();
  out.fillStyle = gray(shade);
  out.fill();
  out.restore();
  return name;
}

// The canvas at the network's size, as brightness from 0 to 1 with noise like that of a camera.
function seen() {
  context.imageSmoothingQuality = "high";
  context.drawImage(canvas, 0, 0, SIZE, SIZE);
  const { data } = context.getImageData(0, 0, SIZE, SIZE);
  for (let at = 0; at < picture.length; ++at) {
    const level = (0.299 * data[4 * at] + 0.587 * data[4 * at + 1] + 0.114 * data[4 * at + 2]) / 255;
    picture[at] = Math.min(1, Math.max(0, level + NOISE * normal()));
  }
  return picture;
}

function show(times, frames, scores) {
  const best = scores.indexOf(Math.max(...scores));
  element("class").textContent = `${NAMES[best]}: ${(100 * scores[best]).toFixed(1)} %`;
  const sorted = [...times].sort((a, b) => a - b);
  element("mean").textContent = ms(sorted.reduce((a, b) => a + b) / sorted.length, 3);
  element("median").textContent = ms(sorted[sorted.length >> 1], 1);
  element("most").textContent = ms(sorted[Math.ceil(0.95 * sorted.length) - 1], 1);
  const span = frames.at(-1) - frames[0];
  if (span > 0) element("frames").textContent = ((1000 * (frames.length - 1)) / span).toFixed(0);
  return NAMES[best];
}

function classify(net) {
  const times = [];
  let frames = [];
  let [right, all, last, seconds, counting, paused] = [0, 0, undefined, 0, true, false];
  element("pause").onclick = () => {
    paused = !paused;
    element("pause").setAttribute("aria-pressed", paused);
    [last, frames] = [undefined, []];
    if (!paused) requestAnimationFrame(frame);
  };
  function frame(now) {
    if (paused) return;
    seconds += last === undefined ? 0 : (now - last) / 1000;
    last = now;
    const name = draw(canvas, seconds);
    const input = seen();
    const start = performance.now();
    const { y } = net.run(input);
    times.push(performance.now() - start);
    if (times.length > KEPT) times.shift();
    frames.push(now);
    if (frames.length > 120) frames.shift();
    right += show(times, frames, y) === name;
    all += 1;
    if (counting && seconds >= 2 * NAMES.length * SHOWN) {
      element("summary").textContent = `Two rounds, light and dark: ${right} of ${all} frames are right.`;
      counting = false;
    }
    requestAnimationFrame(frame);
  }
  requestAnimationFrame(frame);
}

try {
  const start = performance.now();
  const net = await load();
  element("load").textContent = ms(performance.now() - start);
  draw(canvas, 0);
  net.run(seen());
  element("first").textContent = ms(performance.now() - start);
  classify(net);
} catch (error) {
  element("class").textContent = error.message;
  throw error;
}
