import type { Bar } from "./api";
import { between, counted, moment, named, number, seconds } from "./format";
import { to } from "./use";

const ROW = 22, LEFT = 92, WIDTH = 900;
const NOW = () => new Date().toISOString();

interface Phase { name: string; from: string; until: string }

function phases(bar: Bar, now: string): Phase[] {
  const end = bar.committed_at ?? (bar.state === "VOIDED" ? (bar.prepared_at ?? bar.opened_at) : now);
  const tried = bar.first_try_at ?? bar.prepared_at ?? end, prepared = bar.prepared_at ?? end;
  return [
    { name: "start", from: bar.opened_at, until: tried },
    { name: "process", from: tried, until: prepared },
    { name: bar.waits === "turn" ? "wait" : "commit", from: prepared, until: end },
  ].filter((of) => Date.parse(of.until) >= Date.parse(of.from));
}

function told(bar: Bar, of: Phase[]): string {
  const took = of.map((p) => `${p.name} ${seconds(between(p.from, p.until))}`).join(", ");
  const waits = bar.waits === "turn" ? `, waits for ${bar.before}` : bar.waits ? `, waits for: ${bar.waits}` : "";
  return `${named(bar.txid, bar.revision)}: ${bar.state}, opened ${moment(bar.opened_at)}, ${took}${waits}, ${number(bar.records ?? bar.offsets)} records`;
}

/** A bar a transaction, from its begin to its commit; an arrow from one that waits to the one that it waits for. */
export function Bars({ pipeline, bars }: { pipeline: string; bars: Bar[] }) {
  if (!bars.length) return null;
  const now = NOW();
  const of = bars.map((bar) => ({ bar, phases: phases(bar, now) }));
  const first = Math.min(...bars.map((bar) => Date.parse(bar.opened_at)));
  const last = Math.max(...of.flatMap((one) => one.phases.map((p) => Date.parse(p.until))), first + 1000);
  const x = (at: string) => LEFT + ((Date.parse(at) - first) / (last - first)) * (WIDTH - LEFT - 10);
  const y = new Map(of.map((one, n) => [`${one.bar.txid}.${one.bar.revision}`, n * ROW + 4]));
  const height = of.length * ROW + 26;
  return (
    <div className="scrolls" role="region" aria-label="Transactions over time" tabIndex={0}>
      <svg className="bars" viewBox={`0 0 ${WIDTH} ${height}`} role="list" aria-label="Transactions over time, the newest first" style={{ minWidth: 640 }}>
        {of.map(({ bar, phases }) => {
          const top = y.get(`${bar.txid}.${bar.revision}`) ?? 0;
          const waitsAt = bar.waits === "turn" && bar.before !== null ? y.get(`${bar.before}.0`) : undefined;
          const end = phases.at(-1);
          return (
            <g key={`${bar.txid}.${bar.revision}`} role="listitem">
              <a href={to(pipeline, bar.txid)} aria-label={told(bar, phases)}>
                <title>{told(bar, phases)}</title>
                <rect x={0} y={top - 3} width={WIDTH} height={ROW} className="hit" />
                <text x={LEFT - 8} y={top + 12} textAnchor="end">{bar.revision ? `${bar.txid} r${bar.revision}` : bar.txid}</text>
                {phases.map((p) => (
                  <rect key={p.name} x={x(p.from)} y={top} height={ROW - 8} rx={2} width={Math.max(x(p.until) - x(p.from), p.name === "process" ? 2 : 0)}
                    className={bar.halted_at ? "halted" : bar.state === "VOIDED" ? "voided" : bar.state === "ABORTED" ? "aborted" : p.name} />
                ))}
                {waitsAt !== undefined && end && <path className="arrow" d={`M ${x(end.until)} ${top + 7} V ${waitsAt + 12}`} markerEnd="url(#head)" />}
              </a>
            </g>
          );
        })}
        <defs><marker id="head" viewBox="0 0 6 6" refX="3" refY="3" markerWidth="6" markerHeight="6" orient="auto"><path d="M0 0 L6 3 L0 6 z" className="arrowhead" /></marker></defs>
        <text x={LEFT} y={height - 6} className="axis">{moment(new Date(first).toISOString())}</text>
        <text x={WIDTH - 10} y={height - 6} textAnchor="end" className="axis">{moment(new Date(last).toISOString())}</text>
      </svg>
      <p className="legend" aria-hidden="true">
        {["start", "process", "wait", "commit", "aborted", "halted", "voided"].map((name) => <span key={name}><i className={`swatch ${name}`} />{name}</span>)}
      </p>
    </div>
  );
}

/** Durations and records of committed transactions, the oldest on the left. */
export function Rates({ bars }: { bars: Bar[] }) {
  const done = bars.filter((bar) => bar.revision === 0 && bar.committed_at).reverse();
  if (done.length < 2) return null;
  const took = done.map((bar) => between(bar.opened_at, bar.committed_at) ?? 0);
  const read = done.map((bar) => bar.records ?? 0);
  return (
    <div className="pair">
      <Columns title="Seconds from begin to commit" of={took} told={(n) => seconds(n)} />
      <Columns title="Records" of={read} told={(n) => number(n)} />
    </div>
  );
}

function Columns({ title, of, told }: { title: string; of: number[]; told: (n: number) => string }) {
  const most = Math.max(...of, 1e-9), width = 420 / of.length;
  return (
    <figure>
      <figcaption>{title}: {told(Math.min(...of))} to {told(Math.max(...of))}</figcaption>
      <svg viewBox="0 0 420 80" role="img" aria-label={`${title}, ${counted(of.length, "transaction")}, from ${told(Math.min(...of))} to ${told(Math.max(...of))}`}>
        {of.map((n, at) => <rect key={at} x={at * width} width={Math.max(width - 1, 0.5)} y={80 - (n / most) * 78} height={(n / most) * 78} className="process" />)}
      </svg>
    </figure>
  );
}
