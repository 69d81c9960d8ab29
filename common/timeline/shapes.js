/* What a drawing is made of: colours, lines, arrows, pixels. */

/** A colour "#rrggbb" as a number that a canvas keeps for a pixel: alpha, blue, green, red. */
function pixel(colour) {
  const value = parseInt(colour.slice(1), 16);
  return (0xff000000 | ((value & 0xff) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}

/** Staleness as a colour: even steps up to `last`, and the last colour from there on. */
class Scale {
  constructor({ colours, last, unknown }) {
    Object.assign(this, { colours, last, unknown });
    const rgb = colours.map((c) => [1, 3, 5].map((i) => parseInt(c.slice(i, i + 2), 16)));
    const steps = 256;
    this.table = Array.from({ length: steps }, (_, i) => {
      const place = (i / (steps - 1)) * (rgb.length - 1);
      const low = Math.min(Math.floor(place), rgb.length - 2);
      const mixed = rgb[low].map((value, c) => Math.round(value + (rgb[low + 1][c] - value) * (place - low)));
      return "#" + mixed.map((value) => value.toString(16).padStart(2, "0")).join("");
    });
    this.pixels = Uint32Array.from(this.table, pixel);
    this.unknownPixel = pixel(unknown);
  }

  place(staleness) {
    return Math.round((Math.min(staleness, this.last) / this.last) * (this.table.length - 1));
  }

  colour(staleness) {
    return staleness < 0 ? this.unknown : this.table[this.place(staleness)];
  }

  pixel(staleness) {
    return staleness < 0 ? this.unknownPixel : this.pixels[this.place(staleness)];
  }
}

function line(context, x, y, toX, toY) {
  context.moveTo(x, y);
  context.lineTo(toX, toY);
}

function arrow(context, x, y, toX, toY, colour, width) {
  const far = Math.hypot(toX - x, toY - y);
  const head = Math.min(7, far / 2);
  const [dx, dy] = [((toX - x) / far) * head, ((toY - y) / far) * head];
  Object.assign(context, { strokeStyle: colour, fillStyle: colour, lineWidth: width });
  context.beginPath();
  line(context, x, y, toX - dx / 2, toY - dy / 2);
  context.stroke();
  context.beginPath();
  context.moveTo(toX, toY);
  context.lineTo(toX - dx - dy * 0.4, toY - dy + dx * 0.4);
  context.lineTo(toX - dx + dy * 0.4, toY - dy - dx * 0.4);
  context.fill();
}

/** Add to each pixel how much of it lies between two places, times `weight`. */
function spread(pixels, from, to, weight) {
  const [low, high] = [Math.max(0, from), Math.min(pixels.length, to)];
  for (let x = Math.floor(low); x < high; x++) pixels[x] += weight * (Math.min(x + 1, high) - Math.max(x, low));
}

function column(pixels, width, height, x, top, bottom, colour) {
  for (let y = Math.max(0, top); y < Math.min(bottom, height); y++) pixels[y * width + x] = colour;
}

/** White stripes: of a message that was dropped. */
function hatching() {
  const tile = Object.assign(document.createElement("canvas"), { width: 6, height: 6 });
  const context = tile.getContext("2d");
  Object.assign(context, { strokeStyle: "#ffffffd9", lineWidth: 2 });
  context.beginPath();
  line(context, -1, 7, 7, -1);
  line(context, -4, 4, 4, -4);
  line(context, 2, 10, 10, 2);
  context.stroke();
  return context.createPattern(tile, "repeat");
}
