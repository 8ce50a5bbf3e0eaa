// What happened between two looks at the daemon, a second.

const COUNTS = ["read_commands", "write_commands", "read_bytes", "written_bytes"];

/** Rates of one thing that counts: `before` may be missing, and a count that fell began anew. */
export function between(before, after, seconds) {
  const rates = {};
  for (const name of COUNTS) {
    const rose = before ? after[name] - before[name] : 0;
    rates[name] = seconds > 0 && rose > 0 ? rose / seconds : 0;
  }
  return rates;
}

/** The sum of several rates. */
export function sum(all) {
  const total = Object.fromEntries(COUNTS.map((name) => [name, 0]));
  for (const rates of all) for (const name of COUNTS) total[name] += rates[name];
  return total;
}
