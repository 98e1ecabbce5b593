import { useLayoutEffect, useRef, useState } from "react";
import type { Bar, Phase } from "./api";
import { between, counted, moment, named, number, seconds, span } from "./format";
import { to } from "./use";

const ROW = 22;
/** A phase that was over at once is still seen. */
const THIN = 3;
/** Of few transactions, columns are no blocks. */
const WIDEST = 24;

/** Until when a phase is drawn: what goes on, until now. */
const untilOf = (of: Phase, now: string) => of.until ?? now;

function told(bar: Bar, now: string): string {
  const took = bar.phases.map((p) => (p.since === p.until ? p.name : `${p.name} ${seconds(between(p.since, untilOf(p, now)))}`)).join(", ");
  const waits = bar.waits === "turn" ? `, waits for ${bar.before}` : bar.waits ? `, waits for: ${bar.waits}` : "";
  const read = bar.records === null ? `${counted(bar.offsets, "offset")} planned` : counted(bar.records, "record");
  return `${named(bar.txid, bar.revision)}: ${bar.state}, opened ${moment(bar.opened_at)}, ${took}${waits}, ${read}`;
}

/** A bar a transaction, from its begin to its commit; an arrow from one that waits to the one that it waits for.

    It is as wide as the page, so that the newest is always in view. */
export function Bars({ pipeline, bars, now }: { pipeline: string; bars: Bar[]; now: string }) {
  const frame = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(900);
  useLayoutEffect(() => {
    if (!frame.current) return;
    const seen = new ResizeObserver(([of]) => of && setWidth(Math.max(240, Math.round(of.contentRect.width))));
    seen.observe(frame.current);
    return () => seen.disconnect();
  }, [bars.length === 0]);
  if (!bars.length) return null;
  const isNarrow = width < 500, left = isNarrow ? 56 : 92;
  const first = Math.min(...bars.map((bar) => Date.parse(bar.opened_at)));
  const last = Math.max(...bars.flatMap((bar) => bar.phases.map((p) => Date.parse(untilOf(p, now)))), first + 1000);
  const x = (at: string) => left + ((Date.parse(at) - first) / (last - first)) * (width - left - 10);
  const y = new Map(bars.map((bar, n) => [`${bar.txid}.${bar.revision}`, n * ROW + 4]));
  const axis = bars.length * ROW + 20, height = axis + (isNarrow ? 20 : 6);
  return (
    <div ref={frame}>
      <svg className="bars" viewBox={`0 0 ${width} ${height}`} role="list" aria-label="Transactions over time, the newest first">
        {bars.map((bar) => {
          const top = y.get(`${bar.txid}.${bar.revision}`) ?? 0;
          const waitsAt = bar.waits === "turn" && bar.before !== null ? y.get(`${bar.before}.0`) : undefined;
          const end = bar.phases.at(-1);
          return (
            <g key={`${bar.txid}.${bar.revision}`} role="listitem">
              <a href={to(pipeline, bar.txid)} aria-label={told(bar, now)}>
                <title>{told(bar, now)}</title>
                <rect x={0} y={top - 3} width={width} height={ROW} className="hit" />
                <text x={left - 8} y={top + 12} textAnchor="end">{bar.revision ? `${bar.txid} r${bar.revision}` : bar.txid}</text>
                {bar.phases.map((p, n) => {
                  const wide = x(untilOf(p, now)) - x(p.since);
                  return <rect key={n} x={x(p.since)} y={top} height={ROW - 8} rx={2} className={p.name}
                    width={["process", "halted", "voided", "aborted"].includes(p.name) ? Math.max(wide, THIN) : Math.max(wide, 0)} />;
                })}
                {waitsAt !== undefined && end && <path className="arrow" d={`M ${x(untilOf(end, now))} ${top + 7} V ${waitsAt + 12}`} markerEnd="url(#head)" />}
              </a>
            </g>
          );
        })}
        <defs><marker id="head" viewBox="0 0 6 6" refX="3" refY="3" markerWidth="6" markerHeight="6" orient="auto"><path d="M0 0 L6 3 L0 6 z" className="arrowhead" /></marker></defs>
        <text x={isNarrow ? 0 : left} y={axis} className="axis">{moment(new Date(first).toISOString())}</text>
        <text x={width - 10} y={height - 6} textAnchor="end" className="axis">{moment(new Date(last).toISOString())}</text>
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
  const least = Math.min(...of), most = Math.max(...of), width = Math.min(420 / of.length, WIDEST);
  const range = span(told(least), told(most));
  const tall = (n: number) => (n / Math.max(most, 1e-9)) * 78;
  return (
    <figure>
      <figcaption>{title}: {range}</figcaption>
      <svg viewBox="0 0 420 80" role="img" aria-label={`${title}, ${counted(of.length, "transaction")}, ${range}`}>
        {of.map((n, at) => <rect key={at} x={at * width} width={Math.max(width - 1, 0.5)} y={80 - tall(n)} height={tall(n)} className="process" />)}
      </svg>
    </figure>
  );
}
