// The timeline: rows of streams on a canvas, zoom and pan by mouse, touch and keyboard.

const rowHeight = 26, rowLabel = 18, axisHeight = 22, subRows = 4;

class Timeline {
  constructor(trace) {
    this.trace = trace;
    this.views = trace.page.timelines;
    this.pointers = new Map();
    this.element = this.build();
    if (this.views.length) this.choose(0);
  }

  build() {
    if (!this.views.length) return section('timeline', 'Timeline', note('There is no work to draw.'));
    this.canvas = h('canvas', {
      tabindex: '0', role: 'application', 'aria-roledescription': 'timeline', 'aria-describedby': 'timeline-keys',
      pointermove: (e) => this.moved(e), pointerdown: (e) => this.pressed(e), pointerup: (e) => this.released(e),
      pointercancel: (e) => this.released(e), pointerleave: () => this.hover(-1), dblclick: (e) => this.zoom(0.4, this.timeAt(e)),
      keydown: (e) => this.key(e), focus: () => this.focused(), blur: () => this.draw(),
    });
    this.canvas.addEventListener('wheel', (e) => this.wheel(e), {passive: false});
    this.tip = h('div', {class: 'tip', hidden: true, 'aria-hidden': 'true'});
    this.detail = h('div', {class: 'detail', role: 'status'});
    this.range = h('p', {class: 'note'});
    const button = (text, label, action) => h('button', {type: 'button', 'aria-label': label, title: label, click: action}, text);
    this.picker = h('select', {'aria-label': 'What the timeline shows', change: () => this.choose(Number(this.picker.value))},
                    this.views.map((v, i) => h('option', {value: i, text: v.title})));
    const middle = () => (this.from + this.to) / 2;
    return section('timeline', 'Timeline',
      h('div', {class: 'tools'}, this.picker, button('+', 'Zoom in', () => this.zoom(0.5, middle())),
        button('−', 'Zoom out', () => this.zoom(2, middle())), button('◀', 'Earlier', () => this.pan(-0.3)),
        button('▶', 'Later', () => this.pan(0.3)), button('all', 'Show everything', () => this.fit())),
      this.legend = h('p', {class: 'legend'}),
      h('div', {class: 'stage'}, this.canvas, this.tip), this.range, this.detail,
      h('p', {class: 'note', id: 'timeline-keys', text:
        'Mouse: drag to move, Ctrl + wheel or double click to zoom, Shift + drag to zoom into a part. Touch: two fingers. ' +
        'Keys: ← → next kernel of the stream, ↑ ↓ other stream, + − zoom, Page Up and Down move, 0 everything.'}));
  }

  /** Streams become rows; events that overlap inside a stream go to rows below it. */
  choose(index) {
    const view = this.view = this.views[index];
    this.rows = [];
    this.place = new Array(view.start.length);
    view.streams.forEach((id, stream) => {
      const label = /^stream/i.test(id) ? visible(id) : 'stream ' + visible(id);
      const mine = [];
      for (let i = 0; i < view.start.length; ++i) if (view.stream[i] === stream) mine.push(i);
      const lines = [];
      for (const i of mine) {
        let at = lines.findIndex((line) => line.end <= view.start[i]);
        if (at < 0 && lines.length < subRows) at = lines.push({events: [], end: 0}) - 1;
        if (at < 0) at = subRows - 1;
        lines[at].events.push(i);
        lines[at].end = Math.max(lines[at].end, view.start[i] + view.duration[i]);
        this.place[i] = {stream, line: at};
      }
      const total = mine.reduce((sum, i) => sum + view.duration[i], 0);
      this.rows.push({label: label + ': ' + plural(mine.length, 'event') + ', ' + time(total), lines: lines.map((l) => l.events), events: mine});
    });
    let y = axisHeight;
    for (const row of this.rows) {
      row.y = y;
      y += rowLabel + row.lines.length * rowHeight + 4;
    }
    this.height = y + 2;
    this.gaps();
    this.selected = this.hovered = -1;
    this.colours = view.kernels.map((k) => colourOf(this.trace, k.category));
    this.inks = this.colours.map(inkOn);
    this.names = view.kernels.map((k) => brief(this.trace, k.name));
    const used = [...new Set(view.kernels.map((k) => k.category))];
    this.legend.replaceChildren(...used.map((c) => h('span', {}, swatch(colourOf(this.trace, c)), labelOf(this.trace, c))));
    this.canvas.setAttribute('aria-label', 'Timeline of ' + deviceWord(this.trace) + ' ' + visible(view.device) + ', ' + visible(view.title));
    this.detail.replaceChildren(h('p', {text: 'Point at a kernel, or move to the timeline with Tab and use the arrow keys.'}));
    this.fit();
  }

  /** Idle time of the device in front of every event. */
  gaps() {
    const {start, duration} = this.view;
    this.gap = new Array(start.length).fill(0);
    this.covered = [];
    let end = start.length ? start[0] : 0;
    for (let i = 0; i < start.length; ++i) {
      this.gap[i] = Math.max(0, start[i] - end);
      const last = this.covered[this.covered.length - 1];
      if (last && start[i] <= last[1]) last[1] = Math.max(last[1], start[i] + duration[i]);
      else this.covered.push([start[i], start[i] + duration[i]]);
      end = Math.max(end, start[i] + duration[i]);
    }
  }

  // ---- What is in view -----------------------------------------------------------------------------------------------

  fit() {
    const extra = this.view.span_ns * 0.005 + 1;
    this.show(-extra, this.view.span_ns + extra);
  }

  show(from, to) {
    const whole = this.view.span_ns * 1.01 + 2, length = Math.min(Math.max(to - from, 50), whole), middle = (from + to) / 2;
    this.from = Math.min(Math.max(middle - length / 2, -whole * 0.005 - 1), this.view.span_ns + whole * 0.005 + 1 - length);
    this.to = this.from + length;
    this.draw();
  }

  zoom(factor, around) {
    this.show(around + (this.from - around) * factor, around + (this.to - around) * factor);
  }

  pan(share) {
    const by = (this.to - this.from) * share;
    this.show(this.from + by, this.to + by);
  }

  width() {
    return this.canvas.clientWidth || 600;
  }

  x(ns) {
    return (ns - this.from) / (this.to - this.from) * this.width();
  }

  timeAt(event) {
    const x = event.clientX - this.canvas.getBoundingClientRect().left;
    return this.from + x / this.width() * (this.to - this.from);
  }

  // ---- Drawing -------------------------------------------------------------------------------------------------------

  draw() {
    if (!this.view) return;
    const ratio = window.devicePixelRatio || 1, width = this.width();
    this.canvas.style.height = this.height + 'px';
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(this.height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(this.height * ratio);
    }
    const g = this.canvas.getContext('2d'), colours = scheme();
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.fillStyle = colours.back;
    g.fillRect(0, 0, width, this.height);
    this.drawAxis(g, colours, width);
    for (const row of this.rows) this.drawRow(g, colours, row, width);
    if (this.drag && this.drag.select) {
      g.fillStyle = colours.mark;
      g.globalAlpha = 0.15;
      g.fillRect(this.x(Math.min(this.drag.time, this.drag.now)), 0, Math.abs(this.x(this.drag.now) - this.x(this.drag.time)), this.height);
      g.globalAlpha = 1;
    }
    this.describeRange();
  }

  drawAxis(g, colours, width) {
    const rough = (this.to - this.from) / Math.max(2, width / 110), power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((m) => m * power >= rough) * power;
    g.font = '12px system-ui, sans-serif';
    g.textBaseline = 'middle';
    for (let at = Math.ceil(this.from / step) * step; at <= this.to; at += step) {
      const x = this.x(at);
      g.strokeStyle = colours.line;
      g.beginPath();
      g.moveTo(x + 0.5, axisHeight - 4);
      g.lineTo(x + 0.5, this.height);
      g.stroke();
      g.fillStyle = colours.soft;
      const text = axisText(at, step);
      g.fillText(text, Math.min(Math.max(0, x - g.measureText(text).width / 2), width - g.measureText(text).width), axisHeight / 2 - 2);
    }
  }

  drawRow(g, colours, row, width) {
    g.fillStyle = colours.ink;
    g.font = '12px system-ui, sans-serif';
    g.fillText(row.label, 2, row.y + rowLabel / 2);
    row.lines.forEach((events, line) => {
      const y = row.y + rowLabel + line * rowHeight;
      g.fillStyle = colours.row;
      g.fillRect(0, y, width, rowHeight - 2);
      this.drawEvents(g, colours, events, y, width);
    });
  }

  drawEvents(g, colours, events, y, width) {
    const {start, duration, kernel} = this.view;
    const tall = rowHeight - 2;
    let drawnTo = -1;
    g.font = '11px ui-monospace, monospace';
    for (let at = firstEnding(events, start, duration, this.from); at < events.length; ++at) {
      const i = events[at];
      if (start[i] > this.to) break;
      const left = Math.max(-1, this.x(start[i])), right = Math.min(width + 1, this.x(start[i] + duration[i]));
      const marked = i === this.selected || i === this.hovered;
      if (right - left < 0.4 && left < drawnTo && !marked) continue;  // many in one pixel: the first stands for them
      const wide = Math.max(right - left, 0.8);
      g.fillStyle = this.colours[kernel[i]];
      g.fillRect(left, y, wide > 3 ? wide - 0.6 : wide, tall);
      drawnTo = left + Math.max(wide, 0.8);
      if (wide > 34) this.drawName(g, this.names[kernel[i]], this.inks[kernel[i]], Math.max(left, 0), y, Math.min(right, width));
      if (marked) {
        g.strokeStyle = colours.mark;
        g.lineWidth = 2;
        g.strokeRect(left + 1, y + 1, Math.max(wide - 2, 1), tall - 2);
        g.lineWidth = 1;
      }
    }
  }

  drawName(g, name, ink, left, y, right) {
    const room = Math.floor((right - left - 8) / 6.7);
    if (room < 3) return;
    g.fillStyle = ink;
    g.fillText(cut(name, room), left + 4, y + rowHeight / 2 - 1);
  }

  describeRange() {
    const view = this.view, from = Math.max(0, this.from), to = Math.min(view.span_ns, this.to);
    let busy = 0;
    for (const [a, b] of this.covered) busy += Math.max(0, Math.min(b, to) - Math.max(a, from));
    const seen = view.start.reduce((n, s, i) => n + (s < to && s + view.duration[i] >= from ? 1 : 0), 0);
    let text = 'In view: ' + time(to - from) + ' from ' + time(from) + ', ' + plural(seen, 'event') + ', busy ' +
      percent(to > from ? busy / (to - from) : 0) + '. Time counts from the start of what is shown, ' + time(view.offset_ns || 0) +
      ' after the first work of ' + deviceWord(this.trace) + ' ' + visible(view.device) + '.';
    if (view.left_out > 0)
      text += ' Only the first ' + count(view.start.length) + ' events are in this file; ' + count(view.left_out) +
        ' later ones are left out to bound its size.';
    this.range.textContent = text;
  }

  // ---- Pointer -------------------------------------------------------------------------------------------------------

  hit(event) {
    const box = this.canvas.getBoundingClientRect(), y = event.clientY - box.top, at = this.timeAt(event);
    const slack = (this.to - this.from) / this.width() * 3;
    const {start, duration} = this.view;
    for (const row of this.rows) {
      const line = Math.floor((y - row.y - rowLabel) / rowHeight);
      if (y < row.y + rowLabel || line >= row.lines.length) continue;
      let best = -1, distance = slack;
      const events = row.lines[line];
      for (let k = firstEnding(events, start, duration, at - slack); k < events.length; ++k) {
        const i = events[k];
        if (start[i] > at + slack) break;
        const off = at < start[i] ? start[i] - at : Math.max(0, at - start[i] - duration[i]);
        if (off < distance || best < 0 && off <= slack) [best, distance] = [i, off];
      }
      return best;
    }
    return -1;
  }

  moved(event) {
    if (this.pointers.has(event.pointerId)) this.pointers.set(event.pointerId, event.clientX);
    if (this.pinch && this.pointers.size === 2) return this.pinched();
    if (this.drag) {
      this.drag.far = this.drag.far || Math.abs(event.clientX - this.drag.x) > 4;
      if (this.drag.select) {
        this.drag.now = this.timeAt(event);
        this.draw();
      } else if (this.drag.far) {
        const by = (this.drag.x - event.clientX) / this.width() * (this.drag.to - this.drag.from);
        this.show(this.drag.from + by, this.drag.to + by);
      }
      return;
    }
    this.hover(this.hit(event), event);
  }

  pressed(event) {
    if (event.button > 0) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, event.clientX);
    if (this.pointers.size === 2) {
      this.drag = null;
      this.pinch = {apart: this.apart(), from: this.from, to: this.to};
      return;
    }
    const now = this.timeAt(event);
    this.drag = {x: event.clientX, from: this.from, to: this.to, far: false, select: event.shiftKey, time: now, now};
    this.hover(-1);
  }

  released(event) {
    const drag = this.drag;
    this.pointers.delete(event.pointerId);
    this.drag = this.pinch = null;
    if (!drag) return;
    if (drag.select && Math.abs(this.x(drag.now) - this.x(drag.time)) > 6)
      this.show(Math.min(drag.time, drag.now), Math.max(drag.time, drag.now));
    else if (!drag.far && event.type === 'pointerup') this.select(this.hit(event));
    else this.draw();
  }

  apart() {
    const [a, b] = [...this.pointers.values()];
    return Math.max(20, Math.abs(a - b));
  }

  pinched() {
    const {apart, from, to} = this.pinch, middle = (from + to) / 2, length = (to - from) * apart / this.apart();
    this.show(middle - length / 2, middle + length / 2);
  }

  wheel(event) {
    if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;  // the page scrolls
    event.preventDefault();
    const turn = event.deltaY || event.deltaX;
    if (event.shiftKey) this.pan(Math.sign(turn) * 0.15);
    else this.zoom(Math.exp(Math.max(-1, Math.min(1, turn / 300))), this.timeAt(event));
  }

  hover(index, event) {
    if (index !== this.hovered) {
      this.hovered = index;
      this.draw();
    }
    this.tip.hidden = index < 0;
    if (index < 0) return;
    const name = readable(this.trace, this.view.kernels[this.view.kernel[index]].name);
    this.tip.replaceChildren(h('strong', {text: time(this.view.duration[index])}), ' ', h('code', {text: cut(name, 200)}), ...this.facts(index).map((line) => h('div', {text: line})));
    const box = this.canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    this.tip.style.left = Math.max(0, Math.min(x + 12, box.width - this.tip.offsetWidth - 4)) + 'px';
    this.tip.style.top = y + 18 + 'px';
  }

  // ---- Selection and keys --------------------------------------------------------------------------------------------

  facts(i) {
    const v = this.view, row = this.rows[this.place[i].stream];
    const out = [labelOf(this.trace, v.kernels[v.kernel[i]].category) + ', ' + row.label.split(':')[0] + ', starts at ' + time(v.start[i])];
    const launch = launchText(v.shapes[v.shape[i]], v.sm_count);
    if (launch) out.push(launch);
    if (this.gap[i] > 0) out.push('the ' + deviceWord(this.trace) + ' was idle for ' + time(this.gap[i]) + ' before it');
    return out;
  }

  select(index) {
    this.selected = index;
    if (index >= 0) {
      const v = this.view;
      this.detail.replaceChildren(h('p', {}, h('strong', {text: time(v.duration[index])}), ' ',
        h('code', {class: 'kernel', text: readable(this.trace, v.kernels[v.kernel[index]].name)})),
        ...this.facts(index).map((text) => h('p', {text})));
    }
    this.draw();
  }

  focused() {
    if (this.selected < 0 && !this.drag) {
      const first = this.view.start.findIndex((s, i) => s + this.view.duration[i] >= this.from);
      this.select(first);
    } else {
      this.draw();
    }
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const middle = this.selected >= 0 ? this.view.start[this.selected] : (this.from + this.to) / 2;
    const actions = {
      ArrowRight: () => this.step(1), ArrowLeft: () => this.step(-1), ArrowDown: () => this.other(1), ArrowUp: () => this.other(-1),
      '+': () => this.zoom(0.5, middle), '=': () => this.zoom(0.5, middle), '-': () => this.zoom(2, middle), 0: () => this.fit(),
      PageDown: () => this.pan(0.8), PageUp: () => this.pan(-0.8), Home: () => this.go(0), End: () => this.go(this.view.start.length - 1),
    };
    if (!Object.hasOwn(actions, event.key)) return;
    event.preventDefault();
    actions[event.key]();
  }

  step(by) {
    if (this.selected < 0) return this.go(0);
    const events = this.rows[this.place[this.selected].stream].events;
    const at = events.indexOf(this.selected) + by;
    if (at >= 0 && at < events.length) this.go(events[at]);
  }

  other(by) {
    if (this.selected < 0) return this.go(0);
    const row = this.rows[this.place[this.selected].stream + by];
    if (!row) return;
    const when = this.view.start[this.selected];
    this.go(row.events.reduce((best, i) => (Math.abs(this.view.start[i] - when) < Math.abs(this.view.start[best] - when) ? i : best)));
  }

  go(index) {
    const start = this.view.start[index], length = this.to - this.from;
    if (start < this.from || start + this.view.duration[index] > this.to) this.show(start - length * 0.3, start + length * 0.7);
    this.select(index);
  }
}

/** The first of `events` (not overlapping, in time order) that ends at `time` or later. */
function firstEnding(events, start, duration, time) {
  let low = 0, high = events.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (start[events[middle]] + duration[events[middle]] < time) low = middle + 1;
    else high = middle;
  }
  return low;
}

function axisText(ns, step) {
  const [unit, size] = step >= 1e8 ? ['s', 1e9] : step >= 1e5 ? ['ms', 1e6] : step >= 100 ? ['us', 1e3] : ['ns', 1];
  return (ns / size).toFixed(Math.max(0, Math.ceil(-Math.log10(step / size) - 1e-9))) + ' ' + unit;
}
