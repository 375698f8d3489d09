// Draws the charts of a report. The data is in the page: nothing is fetched.
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const palette = ["#2f81f7", "#e16f24", "#2da44e", "#a475f9", "#d4a72c", "#e85aad", "#39c5cf", "#8c959f"];

  const whole = [];
  for (let power = 1; power < 1e12; power *= 10) whole.push(power, 2 * power, 5 * power);

  function axes(chart, yFormat) {
    const look = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
    return [
      {
        ...look, label: chart.x, labelSize: 18, labelFont: "12px system-ui",
        incrs: chart.x === "step" ? whole : undefined, values: (u, ticks) => ticks.map(shorten),
      },
      { ...look, size: 62, incrs: chart.stepped ? whole : undefined, values: (u, ticks) => ticks.map(yFormat || shorten) },
    ];
  }

  function shorten(value) {
    if (value == null) return "";
    const size = Math.abs(value);
    if (size >= 1e9) return +(value / 1e9).toPrecision(3) + "B";
    if (size >= 1e6) return +(value / 1e6).toPrecision(3) + "M";
    if (size >= 1e4) return +(value / 1e3).toPrecision(3) + "k";
    return String(+value.toPrecision(3));
  }

  function draw(place, chart) {
    const joined = uPlot.join(chart.series.map((one) => [one.x, one.y]));
    const series = chart.series.map((one, at) => ({
      label: one.label,
      stroke: palette[at % palette.length],
      width: 1.5,
      spanGaps: true,
      points: { show: one.x.length <= 30 },
      dash: one.dashed ? [6, 4] : undefined,
      paths: chart.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
      value: (u, value) => (value == null ? "" : +value.toPrecision(5)),
    }));
    const options = {
      width: place.clientWidth - 12,
      height: 240,
      scales: { x: { time: false } },
      axes: axes(chart, chart.percent ? (v) => (v == null ? "" : +(100 * v).toPrecision(3) + "%") : null),
      series: [{ label: chart.x }, ...series],
      cursor: { sync: { key: chart.x } },
    };
    const plot = new uPlot(options, joined, place);
    new ResizeObserver(() => plot.setSize({ width: place.clientWidth - 12, height: 240 })).observe(place);
  }

  for (const chart of data.charts) draw(document.getElementById(chart.id), chart);
  // Milliseconds since loading began, for whoever measures it.
  requestAnimationFrame(() => (document.documentElement.dataset.drawn = performance.now().toFixed(1)));
})();
