// Charts over time, by uPlot.

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** Steps of an axis of bytes: powers of two, so that its figures are round in binary units. */
export const POWERS = Array.from({ length: 60 }, (_, power) => 2 ** power);

/** A chart shows at least so many seconds: of one moment alone there is no axis. */
const SECONDS_MIN = 60;

/** A chart in `place`. A series has `label`, `colour` (the name of one of the style's), `fill` if what is below it is filled,
 *  and `dash` if its line has gaps. Where nothing happens its axis goes to `least`. */
export class Chart {
  constructor(place, series, format, { steps, least }) {
    Object.assign(this, { place, series, format, steps, least });
    this.data = [[], ...series.map(() => [])];
    new ResizeObserver(() => this.fit()).observe(place);
    this.draw();
  }

  /** Draws anew: the colours are another scheme's. */
  draw() {
    this.plot?.destroy();
    const value = (_, figure) => this.said(figure);
    const axis = { stroke: colour("quiet"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), width: 1 } };
    const lines = this.series.map((one) => ({
      label: one.label, value, stroke: colour(one.colour), width: 2, dash: one.dash, points: { show: false },
      fill: one.fill ? `${colour(one.colour)}33` : undefined,
    }));
    this.plot = new uPlot({
      width: this.width(), height: 220,
      scales: {
        x: { range: (_, low, high) => this.span(low, high) },
        y: { range: (_, low, high) => [0, high > 0 ? high * 1.08 : this.least] },
      },
      axes: [{ ...axis, space: 70 }, { ...axis, size: 78, space: 40, incrs: this.steps, values: (_, ticks) => ticks.map(this.format) }],
      series: [{ label: "Time" }, ...lines],
      legend: { live: true }, cursor: { y: false, drag: { x: false } },
      // A new plot empties its legend when it is drawn for the first time, and so does one of another size.
      hooks: { ready: [(plot) => this.sayLast(plot)], setSize: [(plot) => queueMicrotask(() => this.sayLast(plot))] },
    }, this.data, this.place);
    this.place.setAttribute("role", "img");
  }

  /** The time that is shown, of which the figures have this. */
  span(low, high) {
    const end = high ?? Date.now() / 1000;
    return [Math.min(low ?? end, end - SECONDS_MIN), end];
  }

  said(figure) { return figure == null ? "–" : this.format(figure); }

  width() { return Math.max(this.place.clientWidth, 200); }

  fit() {
    if (this.plot.width !== this.width()) this.plot.setSize({ width: this.width(), height: 220 });
  }

  /** Where no pointer chooses a moment, the legend says the last one. */
  sayLast(plot) {
    const rows = this.data[0].length;
    if (rows > 0 && (plot.cursor.left == null || plot.cursor.left < 0)) plot.setLegend({ idx: rows - 1 });
  }

  /** Shows these columns: times in seconds since 1970, then the figures of each series. */
  show(columns) {
    this.data = columns;
    this.plot.setData(columns);
    this.sayLast(this.plot);
    const last = this.series.map((one, index) => `${one.label} ${this.said(columns[index + 1].at(-1))}`);
    this.place.setAttribute("aria-label", `Now: ${last.join(", ")}`);
  }
}
