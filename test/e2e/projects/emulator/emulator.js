// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Reads the output for a terminal from stdin, as a JSON list of base64 texts, and prints the modes of the terminal after each text as a JSON list.
const { Terminal } = require('@xterm/headless');
const terminal = new Terminal({ allowProposedApi: true, cols: 80, rows: 24 });
const core = terminal._core;

// What xterm.js does not know: the keyboard modes of the kitty protocol, one stack for each screen, modifyOtherKeys, and further private modes.
const keyboards = { normal: [0], alternate: [0] };
const keyboard = () => keyboards[terminal.buffer.active.type];
let otherKeys = 0;
const known = new Set([1, 3, 6, 7, 9, 12, 25, 45, 47, 66, 1000, 1002, 1003, 1004, 1005, 1006, 1015, 1016, 1047, 1048, 1049, 2004, 2026]);
const others = new Set();
const colors = new Set();
terminal.parser.registerCsiHandler({ prefix: '>', final: 'u' }, p => { keyboard().push(p[0]); return true; });
terminal.parser.registerCsiHandler({ prefix: '<', final: 'u' }, p => {
  for (let n = p[0] || 1; n > 0; n--) keyboard().pop();
  if (keyboard().length === 0) keyboard().push(0); // as kitty does, when an application pops too much
  return true;
});
terminal.parser.registerCsiHandler({ prefix: '=', final: 'u' }, p => {
  const stack = keyboard(), top = stack.length - 1;
  stack[top] = p[1] === 2 ? stack[top] | p[0] : p[1] === 3 ? stack[top] & ~p[0] : p[0];
  return true;
});
terminal.parser.registerCsiHandler({ prefix: '>', final: 'm' }, p => { if (p[0] === 4) otherKeys = p[1] || 0; return true; });
terminal.parser.registerCsiHandler({ prefix: '>', final: 'n' }, p => { if (p[0] === 4) otherKeys = 0; return true; });
for (const final of ['h', 'l']) {
  terminal.parser.registerCsiHandler({ prefix: '?', final }, params => {
    for (const mode of params) if (!known.has(mode)) final === 'h' ? others.add(mode) : others.delete(mode);
    return false;
  });
}
for (const [set, restore] of [[4, 104], [10, 110], [11, 111], [12, 112]]) {
  terminal.parser.registerOscHandler(set, data => { if (!data.endsWith('?')) colors.add(set); return true; });
  terminal.parser.registerOscHandler(restore, () => { colors.delete(set); return true; });
}

function state() {
  const modes = core.coreService.decPrivateModes, charsets = core._charsetService, style = core._inputHandler._curAttrData;
  return {
    ...terminal.modes,
    screen: terminal.buffer.active.type,
    cursorHidden: core.coreService.isCursorHidden,
    cursorStyle: modes.cursorStyle ?? '', cursorBlink: modes.cursorBlink ?? false,
    mouseEncoding: core.coreMouseService.activeEncoding,
    lineFeedReturns: terminal.options.convertEol,
    region: [core.buffer.scrollTop, core.buffer.scrollBottom],
    charset: charsets.charset ? Object.keys(charsets.charset).length : 0, charsetLevel: charsets.glevel,
    style: [style.fg, style.bg, style.extended.urlId, style.extended.underlineStyle],
    keyboards: JSON.stringify(keyboards), otherKeys,
    others: [...others].sort(), colors: [...colors].sort(),
  };
}

(async () => {
  const chunks = [];
  for await (const chunk of process.stdin) chunks.push(chunk);
  const states = [];
  for (const text of JSON.parse(Buffer.concat(chunks))) {
    await new Promise(done => terminal.write(Buffer.from(text, 'base64'), done));
    states.push(state());
  }
  process.stdout.write(JSON.stringify(states));
})();
