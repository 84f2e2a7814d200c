'use strict';
/* Follows /status. Everything from outside goes through textContent or setAttribute: nothing here makes HTML of it. */
(() => {
  const PHASES = ['requested', 'preflight', 'waiting-for-readers', 'transfer', 'verify', 'prepare', 'staged', 'committing'];
  const SUPPLIED = [['origin_bytes', 'the trainer'], ['domain_bytes', 'siblings in this domain'], ['fleet_bytes', 'siblings in other domains'],
    ['kept_bytes', 'kept here'], ['excess_bytes', 'of the trainer\'s because a sibling failed']];
  const SVG = 'http://www.w3.org/2000/svg';
  const $ = id => document.getElementById(id);

  const element = (name, attributes, ...children) => {
    const at = ['svg', 'rect', 'path', 'text', 'title', 'g'].includes(name) ? document.createElementNS(SVG, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) at.setAttribute(key, value);
    at.append(...children);
    return at;
  };
  /* Only what differs is replaced, so that focus and selection stay. */
  const text = (id, value) => { const at = $(id), now = String(value); if (at.textContent !== now) at.textContent = now; };
  const fill = (id, children, key) => {
    const at = $(id);
    if (at.dataset.key === key) return;
    at.dataset.key = key;
    at.replaceChildren(...children);
  };
  const row = (...cells) => element('tr', {}, ...cells.map(c => c instanceof Node ? c : element('td', {}, String(c))));

  const bytes = n => {
    n = Number(n);
    for (const [unit, size] of [['TB', 1e12], ['GB', 1e9], ['MB', 1e6], ['kB', 1e3]])
      if (n >= size) return (n / size).toFixed(n / size < 10 ? 2 : 1) + ' ' + unit;
    return n + ' B';
  };
  const time = us => us >= 1e6 ? (us / 1e6).toFixed(us < 1e7 ? 2 : 1) + ' s' : us >= 1e3 ? (us / 1e3).toFixed(us < 1e4 ? 1 : 0) + ' ms' : us + ' µs';
  const span = ms => {
    const s = Math.max(0, Math.round(ms / 1000));
    return s < 60 ? s + ' s' : s < 3600 ? Math.floor(s / 60) + ' min' : s < 172800 ? Math.floor(s / 3600) + ' h' : Math.floor(s / 86400) + ' d';
  };
  const stamp = ms => new Date(ms).toISOString().replace('T', ' ').slice(0, 19) + ' UTC';
  const total = refit => PHASES.reduce((sum, phase) => sum + (refit.phase_us[phase] || 0), 0);
  const outcome = refit => refit.phase === 'committed' ? 'committed' : refit.phase === 'aborted' ? 'aborted: ' + refit.error.status : refit.phase;

  function memory(weights) {
    const devices = weights.ranks.filter(rank => rank.device).map(rank => rank.device.number);
    return weights.memory === 'host' ? 'host' : weights.memory + ': device ' + [...new Set(devices)].join(', ');
  }

  function showServing(state) {
    const weights = state.weights, active = weights && weights.active, slot = active && weights.slots[active.slot];
    document.title = 'Refit: version ' + (active ? active.version : 'none');
    text('version', active ? active.version : 'none');
    text('label', active && active.label || '–');
    text('digest', active && active.digest || '–');
    text('since', slot ? stamp(slot.since_ms) : '–');
    text('model', weights && weights.model_bytes ? bytes(weights.model_bytes) : '–');
    text('memory', weights ? memory(weights) : '–');
    text('layout', weights && weights.layout || 'not known yet');
    text('instance', weights ? weights.instance : '–');
    text('rollback', !weights ? '–' : (weights.rollback_available ? 'to version ' + weights.rollback_version : 'not available') +
      (weights.held ? ' (held: nothing newer is installed)' : ''));
    $('copy').hidden = !active || !navigator.clipboard;
    const ready = state.ready.status === 'ok';
    $('health').className = 'badge ' + state.ready.status;
    text('health', ready ? 'Ready' : 'Not ready: ' + state.ready.reasons.join('; '));
    const checks = state.ready.checks.map(c => element('li', {'class': c.ok ? 'good' : 'bad'}, (c.ok ? '✓ ' : '✗ ') + c.name + (c.ok ? '' : ' fails')));
    fill('checks', checks, JSON.stringify(state.ready.checks));
  }

  function showSlots(state) {
    const weights = state.weights || {slots: [], ranks: []};
    fill('slots', weights.slots.map(s => row(s.slot, s.state + (s.writable ? '' : ' (sealed)'), Number(s.version) ? s.version : '–', s.pins,
      span(state.now_ms - s.since_ms))), JSON.stringify([weights.slots, Math.floor(state.now_ms / 1000)]));
    fill('ranks', weights.ranks.map(r => row(r.rank, element('td', {'class': r.attached ? 'good' : 'bad'}, r.attached ? 'yes' : 'no'),
      r.label || '–', r.pid || '–')), JSON.stringify(weights.ranks));
  }

  let last = {id: '', done: 0, at: 0, rate: 0};
  function rate(refit, now) {
    const done = Number(refit.bytes_done);
    if (last.id !== refit.id || done < last.done) last = {id: refit.id, done, at: now, rate: 0};
    else if (now - last.at >= 500) last = {id: refit.id, done, at: now, rate: (done - last.done) / (now - last.at) * 1e3};
    return last.rate;
  }

  function showRefit(state) {
    const refit = state.refit;
    $('refit-live').hidden = !refit;
    if (!refit) { text('refit-line', 'None since refitd was started.'); return; }
    const due = Number(refit.bytes_due), done = Number(refit.bytes_done), speed = rate(refit, state.now_ms);
    text('refit-line', `${refit.terminal ? 'Last' : 'Running'}: version ${refit.version}${refit.label ? ' (' + refit.label + ')' : ''}, ${outcome(refit)}` +
      (refit.transport ? `, over ${refit.transport}` : '') + `, ${time(total(refit))}`);
    $('progress').value = due ? done / due : refit.terminal ? 1 : 0;
    text('progress-text', `${bytes(done)} of ${bytes(due)}` + (due ? ` (${Math.floor(100 * done / due)} %)` : '') +
      (!refit.terminal && speed > 0 ? `, ${bytes(speed)}/s` : '') + (refit.terminal ? '' : `, deadline in ${span(refit.deadline_left_ms)}`));
    const parts = SUPPLIED.filter(([key]) => Number(refit.supplied[key])).map(([key, name]) => `${bytes(refit.supplied[key])} ${name}`);
    $('supplied-text').hidden = !parts.length;
    text('supplied-text', 'Came from: ' + parts.join(', '));
    const at = PHASES.indexOf(refit.phase === 'aborted' ? refit.error.phase : refit.phase);
    const now = refit.phase === 'aborted' ? 'failed' : 'now';
    fill('phases', PHASES.map((phase, i) => {
      const past = refit.phase === 'committed' || i < at, kind = i === at && refit.phase !== 'committed' ? now : past ? 'past' : 'later';
      const item = element('li', {'class': kind}, phase + (refit.phase_us[phase] ? ' ' + time(refit.phase_us[phase]) : ''));
      if (kind === 'now') item.setAttribute('aria-current', 'step');
      return item;
    }), JSON.stringify([refit.phase, refit.phase_us]));
    const note = refit.error ? `${refit.error.text}. What to do: ${refit.error.action}.`
      : refit.waiting ? `Waits for ${refit.waiting.label || 'rank ' + refit.waiting.rank}: ${refit.waiting.pins} pins on version ${refit.waiting.version}, ` +
        `${span(refit.waiting.age_ms)} old.` : '';
    $('refit-note').hidden = !note;
    text('refit-note', note);
  }

  function bar(refit, longest) {
    const parts = PHASES.map((phase, i) => [phase, refit.phase_us[phase] || 0, i + 1]).filter(p => p[1] > 0);
    const says = parts.map(p => `${p[0]} ${time(p[1])}`).join(', ');
    const svg = element('svg', {'class': 'bar', viewBox: '0 0 1000 20', preserveAspectRatio: 'none', role: 'img', 'aria-label': says},
      element('title', {}, says));
    let x = 0;
    for (const [, us, colour] of parts) {
      const width = Math.max(1000 * us / longest, 1);
      svg.append(element('rect', {x, y: 2, width, height: 16, 'class': 'p' + colour}));
      x += width;
    }
    return svg;
  }

  function showHistory(state) {
    const list = state.history, longest = Math.max(1, ...list.map(total));
    $('history-none').hidden = list.length > 0;
    const rows = list.flatMap(refit => {
      const bad = refit.phase === 'aborted', kind = bad ? 'bad' : refit.phase === 'committed' ? 'good' : '';
      const shown = [row(element('th', {scope: 'row'}, String(refit.version) + (refit.label ? ` (${refit.label})` : '')),
        element('td', {'class': kind}, outcome(refit)), stamp(refit.began_ms), bytes(refit.bytes_due), refit.transport || '–', time(total(refit)),
        element('td', {}, bar(refit, longest)))];
      if (bad) shown.push(element('tr', {}, element('td', {colspan: 7, 'class': 'why'}, refit.error.text)));
      return shown;
    });
    fill('history', rows, JSON.stringify(list));
  }

  function showLegend() {
    fill('legend', PHASES.map((phase, i) => element('li', {}, element('svg', {viewBox: '0 0 10 10', 'aria-hidden': 'true'},
      element('rect', {width: 10, height: 10, 'class': 'p' + (i + 1)})), phase)), 'legend');
  }

  /* Left the ranks that send, right those that receive; a flow is as thick as its bytes, a node as high as its flows. */
  function picture(edges, from, to) {
    const height = Math.max(90, 34 * Math.max(from.length, to.length)), whole = edges.reduce((sum, e) => sum + Number(e.bytes), 0) || 1;
    const scale = (height - 12 * Math.max(from.length, to.length)) / whole;
    const place = (names, pick) => {
      const sums = names.map(name => edges.filter(e => pick(e) === name).reduce((sum, e) => sum + Number(e.bytes), 0));
      const gap = (height - sums.reduce((a, b) => a + b, 0) * scale) / (names.length + 1);
      let y = 0;
      return new Map(names.map((name, i) => { y += gap; const at = {y, next: y, sum: sums[i]}; y += sums[i] * scale; return [name, at]; }));
    };
    const left = place(from, e => e.from), right = place(to, e => e.to);
    const svg = element('svg', {'class': 'picture', viewBox: `0 0 900 ${height}`, role: 'img',
      'aria-label': `${from.length} senders to ${to.length} receivers, ${bytes(whole)} in all; the table below has each flow`});
    for (const e of edges) {
      const a = left.get(e.from), b = right.get(e.to), thick = Math.max(1, Number(e.bytes) * scale);
      const y1 = a.next + thick / 2, y2 = b.next + thick / 2;
      a.next += Number(e.bytes) * scale;
      b.next += Number(e.bytes) * scale;
      svg.append(element('path', {'class': 'flow', d: `M206 ${y1}C450 ${y1} 450 ${y2} 694 ${y2}`, 'stroke-width': thick},
        element('title', {}, `${e.from} to ${e.to}: ${bytes(e.bytes)}`)));
    }
    for (const [nodes, x, at, anchor] of [[left, 200, 192, 'end'], [right, 694, 708, 'start']])
      for (const [name, node] of nodes) {
        const middle = node.y + node.sum * scale / 2;
        svg.append(element('rect', {'class': 'node', x, y: node.y, width: 6, height: Math.max(2, node.sum * scale)}),
          element('text', {x: at, y: middle, 'text-anchor': anchor}, name),
          element('text', {'class': 'small', x: at, y: middle + 15, 'text-anchor': anchor}, bytes(node.sum)));
      }
    return svg;
  }

  const sorted = names => [...new Set(names)].sort((a, b) => a.localeCompare(b, 'en', {numeric: true}));
  function showTraffic(traffic, refit) {
    let edges = (traffic.edges || []).map(e => ({from: `source ${e.source_ranks}`, to: `serving ${e.destination_ranks}`, bytes: e.bytes}));
    if (!edges.length && refit && Number(refit.bytes_due))
      edges = [{from: traffic.checkpoint ? 'checkpoint files' : 'source', to: 'this replica', bytes: refit.bytes_due}];
    const from = sorted(edges.map(e => e.from)), to = sorted(edges.map(e => e.to));
    text('traffic-text', !edges.length ? 'Known once a refit was asked for.'
      : `Version ${refit ? refit.version : ''}${traffic.checkpoint ? ', from ' + traffic.checkpoint : ''}: ${edges.length} flows, ` +
        `${bytes(edges.reduce((sum, e) => sum + Number(e.bytes), 0))}` + (traffic.more ? `; the largest of ${edges.length + traffic.more}` : '') + '.');
    fill('traffic', edges.length ? [picture(edges, from, to)] : [], JSON.stringify(edges));
    fill('edges', edges.map(e => row(e.from, e.to, bytes(e.bytes))), JSON.stringify(edges));
    $('traffic-table').hidden = !edges.length;
  }

  const get = async path => {
    const answer = await fetch(path, {cache: 'no-store', signal: AbortSignal.timeout(5000)});
    if (!answer.ok) throw new Error(`${path}: ${answer.status} ${answer.statusText}`);
    return answer.json();
  };

  let asked = '';
  async function followHolders(refit) {
    const wanted = refit && refit.terminal ? refit.id : ''; /* one that has ended changes no more */
    if (wanted && wanted === asked) return;
    const list = refit ? (await get(`refit/${encodeURIComponent(refit.id)}/holders`)).holders : [];
    $('holders-table').hidden = !list.length;
    fill('holders', list.map(h => row(h.name, element('td', {'class': h.state === 'connected' ? 'good' : h.state === 'absent' ? '' : 'bad'}, h.state),
      h.owed, bytes(h.bytes))), JSON.stringify(list));
    asked = wanted;
  }

  let drawn = '';
  async function followTraffic(refit) {
    const wanted = refit ? refit.id + refit.bytes_due : '';
    if (wanted === drawn) return;
    showTraffic(refit ? await get('traffic') : {}, refit);
    drawn = wanted;
  }

  let heard = 0, failures = 0, timer = 0;
  async function step() {
    timer = 0;
    let pause = 1000;
    try {
      const state = await get('status');
      showServing(state);
      showSlots(state);
      showRefit(state);
      showHistory(state);
      heard = Date.now();
      failures = 0;
      $('trouble').hidden = true;
      if (state.refit && !state.refit.terminal) pause = 250;
      await followHolders(state.refit).catch(() => {});
      await followTraffic(state.refit).catch(() => {}); /* asked for again at the next step */
    } catch (error) {
      /* Once is a restart or a laptop that slept. */
      if (++failures > 1) {
        $('trouble').hidden = false;
        text('trouble', 'No answer from refitd' + (heard ? ' for ' + span(Date.now() - heard) : '') + ': what is shown may be old. ' + error.message);
      }
    }
    document.body.dataset.steps = Number(document.body.dataset.steps || 0) + 1;
    text('age', heard ? '· as of ' + stamp(heard) : '');
    if (!document.hidden) timer = setTimeout(step, pause);
  }

  document.addEventListener('visibilitychange', () => { if (!document.hidden && !timer) step(); });
  $('copy').addEventListener('click', () => navigator.clipboard.writeText($('digest').textContent));
  showLegend();
  step();
})();
