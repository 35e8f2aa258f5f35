// What is wrong with the open page: a list of texts. Overflow and clipping in pixels of the window;
// contrast as WCAG 2 defines it: 4.5 for text, 3 for large text.
(() => {
  const faults = [];
  const root = document.documentElement;
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const paint = canvas.getContext("2d", { willReadFrequently: true });

  const name = (node) => {
    const kind = node.getAttribute("class");
    const text = node.textContent.trim().slice(0, 40);
    return `<${node.tagName.toLowerCase()}${kind ? ` class="${kind}"` : ""}> ${text}`;
  };
  const scrolls = (node) => ["auto", "scroll"].includes(getComputedStyle(node).overflowX);
  const insideScrolling = (node) => {
    for (let up = node.parentElement; up; up = up.parentElement) if (scrolls(up)) return true;
    return false;
  };
  // Red, green, blue from 0 to 255, alpha from 0 to 1, of any colour that CSS can write.
  const rgba = (colour) => {
    paint.clearRect(0, 0, 1, 1);
    paint.fillStyle = colour;
    paint.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = paint.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) =>
    [0, 1, 2].map((i) => top[3] * top[i] + (1 - top[3]) * below[i]).concat(1);
  const luminance = (colour) => {
    const linear = colour.slice(0, 3).map((c) => c / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const contrast = (one, two) => {
    const [high, low] = [luminance(one), luminance(two)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  };
  const probe = document.body.appendChild(document.createElement("div"));
  probe.style.backgroundColor = "Canvas";
  const canvasColour = getComputedStyle(probe).backgroundColor; // of the colour scheme
  probe.remove();
  // The colours that may lie behind a node's text: one, or those of a gradient over it.
  const grounds = (node) => {
    if (!node) return [rgba(canvasColour)];
    const style = getComputedStyle(node);
    const plain = grounds(node.parentElement).map((below) => over(rgba(style.backgroundColor), below));
    const stops = style.backgroundImage.match(/(rgba?|hsla?|color|oklab|oklch)\([^()]*\)/g) || [];
    return plain.concat(stops.flatMap((stop) => plain.map((below) => over(rgba(stop), below))));
  };

  if (root.scrollWidth > root.clientWidth)
    faults.push(`overflow: the page is ${root.scrollWidth} wide in ${root.clientWidth}`);
  for (const node of document.body.querySelectorAll("*")) {
    if (!node.checkVisibility()) continue;
    const box = node.getBoundingClientRect();
    if (!insideScrolling(node) && box.width && (box.right > root.clientWidth + 1 || box.left < -1))
      faults.push(`overflow: ${name(node)} reaches from ${box.left} to ${box.right}`);
    const block = node instanceof HTMLElement && node.clientWidth > 0;
    if (block && !scrolls(node) && node.scrollWidth > node.clientWidth + 1)
      faults.push(`overflow: ${name(node)} is ${node.scrollWidth} wide in ${node.clientWidth}`);
    if (node instanceof SVGTextElement) {
      const frame = node.ownerSVGElement.getBoundingClientRect();
      if (box.left < frame.left - 1 || box.right > frame.right + 1 ||
          box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
        faults.push(`clipped: ${name(node)} by its picture`);
    }
  }
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    const node = text.parentElement;
    if (!text.data.trim() || !node.checkVisibility({ opacityProperty: true })) continue;
    if (["STYLE", "SCRIPT", "title"].includes(node.tagName)) continue;
    const style = getComputedStyle(node);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && parseInt(style.fontWeight) >= 700);
    const ink = rgba(node instanceof SVGElement ? style.fill : style.color);
    for (const ground of grounds(node)) {
      const ratio = contrast(over(ink, ground), ground);
      if (ratio < (large ? 3 : 4.5)) {
        faults.push(`contrast: ${ratio.toFixed(2)} of ${name(node)}`);
        break;
      }
    }
  }
  return [...new Set(faults)];
})();
