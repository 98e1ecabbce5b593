import type { MouseEvent, ReactNode } from "react";
import { Failed } from "./api";
import { runLink } from "./format";

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

export const Badge = ({ kind, children }: { kind: string; children: ReactNode }) => <span className={`badge ${kind.toLowerCase()}`}>{children}</span>;

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
