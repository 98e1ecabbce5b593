import { type MouseEvent, type ReactNode, useRef, useState } from "react";
import { Failed, type Line, type State } from "./api";
import { counted, runLink } from "./format";

export function Table({ label, head, children, empty }: { label: string; head: string[]; children: ReactNode[]; empty?: string }) {
  if (!children.length) return <p className="quiet">{empty ?? "None."}</p>;
  return (
    <div className="scrolls" role="region" aria-label={label} tabIndex={0}>
      <table>
        <thead>
          <tr>{head.map((name) => <th key={name} scope="col">{name}</th>)}</tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}

export function Answer({ error, waits }: { error: Error | null; waits: boolean }) {
  if (error instanceof Failed && error.status === 401)
    return <p role="alert" className="fault">You are not logged in. <a href={new URL("../", document.baseURI.split("#")[0]).href} target="_top">Log in to Airflow</a>.</p>;
  if (error) return <p role="alert" className="fault">{error instanceof Failed && error.code ? `${error.code}: ` : ""}{error.message}</p>;
  return waits ? <p role="status" className="quiet">Loading…</p> : null;
}

/**
 * A whole command, of those that the server's sentences name and that take nothing away for good: plain words on one
 * line, of which a shell makes nothing else.
 */
const COMMAND = /`(ratchet (?:abort|accept-loss|attach|detach|dlq|doctor|explain|history|lag|migrate|origin|pause-at|plan|preview|release|repartitioned|replay|resume|retry|show|status|validate|verify|void|where)(?: (?:[\w.:/@+-]+|…))*)`/;

/**
 * A sentence of the server's, in which backticks stand around what is typed. It quotes records, errors and reasons of
 * other people as well, so only what is a command of ours is shown as one; a backtick anywhere else turns nothing around.
 */
export function Words({ of }: { of: string }) {
  return <>{of.split(COMMAND).map((part, n) => (n % 2 === 0 ? part : <Command key={n} line={part} />))}</>;
}

/** What a person is to put in the place of `…` is not copied: entered as it is, it would be the reason. */
function Command({ line }: { line: string }) {
  const code = useRef<HTMLElement>(null);
  const [isCopied, setCopied] = useState(false);
  const typed = line.replace(/ --reason …$/, ""), rest = line.slice(typed.length);
  async function copy() {
    // Browsers have a clipboard for pages of https alone; elsewhere what is selected is copied.
    if (navigator.clipboard) await navigator.clipboard.writeText(typed);
    else {
      getSelection()?.selectAllChildren(code.current!);
      document.execCommand("copy");
    }
    setCopied(true);
  }
  return <><code><span ref={code}>{typed}</span>{rest}</code> <button type="button" className="copy" aria-label={`Copy ${typed}`} onClick={() => void copy()}>{isCopied ? "Copied" : "Copy"}</button></>;
}

export const Badge = ({ kind, children }: { kind: string; children: ReactNode }) => <span className={`badge ${kind.toLowerCase()}`}>{children}</span>;

/** Where a transaction stands: what is halted is unfinished, whatever its state; a revision halts no line, but is given up. */
export const Stands = ({ of }: { of: { state: State; revision: number; halted_at: string | null } }) =>
  of.halted_at && of.state !== "VOIDED" ? <Badge kind="halted">{of.revision > 0 ? "given up" : `halted, ${of.state}`}</Badge> : <Badge kind={of.state}>{of.state}</Badge>;

/** A revision is worked on beside the line, in which it has its place already. */
export function revised(line: Line): string[] {
  const beside = line.unfinished.filter((of) => of.revision > 0), releases = beside.filter((of) => of.releases !== null).length;
  return [[beside.length - releases, "replay"] as const, [releases, "release"] as const].filter(([n]) => n > 0).map(([n, kind]) => counted(n, kind));
}

export function Facts({ of }: { of: [string, ReactNode][] }) {
  return (
    <dl className="facts">
      {of.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** A run's page in Airflow's UI; the frame that Airflow shows this page in may not go there by itself, but may ask. */
export function Run({ dag, run }: { dag: string; run: string }) {
  const href = runLink(dag, run);
  function go(event: MouseEvent) {
    if (window.parent === window || event.metaKey || event.ctrlKey || event.button) return;
    event.preventDefault();
    window.parent.history.pushState({}, "", href);
    window.parent.dispatchEvent(new PopStateEvent("popstate", { state: {} }));
  }
  return <a href={href} target="_top" onClick={go}>{run}</a>;
}
