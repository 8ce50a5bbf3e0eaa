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

/** Buckets of an operation over several volumes: how many commands took less than so many nanoseconds. */
function buckets(volumes, operation) {
  const counts = new Map();
  for (const { latency } of volumes) {
    for (const { below_ns, commands } of latency?.[operation]?.buckets ?? []) {
      const below = below_ns ?? Infinity;
      counts.set(below, (counts.get(below) ?? 0) + commands);
    }
  }
  return counts;
}

/** How long half of the commands, and 99 of a hundred, took at most between two looks, in microseconds; null of none. */
export function percentiles(before, after, operation) {
  const was = buckets(before, operation);
  const now = [...buckets(after, operation)].sort(([one], [other]) => one - other);
  const rose = now.map(([below, count]) => [below, Math.max(0, count - (was.get(below) ?? 0))]);
  const all = rose.reduce((sum, [, count]) => sum + count, 0);
  const at = (part) => {
    let seen = 0;
    const found = rose.find(([, count]) => { seen += count; return count > 0 && seen >= part * all; });
    return found ? Math.min(found[0], 2 ** 34) / 1000 : null;
  };
  return { p50: at(0.5), p99: at(0.99) };
}
