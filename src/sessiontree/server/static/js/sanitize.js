// Makes invisible characters of session text visible. Pure functions with the rules of core/sanitize.py and the
// exported page.

const COLOURS = /\x1b\[[0-9;:]*m/g;
const INVISIBLE =
  /[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\p{Cs}\u{e0000}-\u{e007f}]/gu;

const toSymbol = (character) => {
  const code = character.codePointAt(0);
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  if (code === 0x7f) return "\u2421";
  if (code >= 0xd800 && code <= 0xdfff) return "\ufffd";
  return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
};

/** Remove terminal colours, write line ends as `\n`, and replace invisible characters by symbols. */
export const makeVisible = (text) => text.replace(COLOURS, "").replaceAll("\r\n", "\n").replace(INVISIBLE, toSymbol);
