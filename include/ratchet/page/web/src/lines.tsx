import { useState } from "react";
import type { Lag, Lags, Line, Lines } from "./api";
import { ago, counted, number, seconds } from "./format";
import { Answer, Badge, Table, revised } from "./parts";
import { to, useAsked } from "./use";

/** So many milliseconds a destination may take for a commit before that is said of its line. */
const PATIENCE = 60_000;

function stands(line: Line): [string, string] {
  if (line.halt !== null) return ["halted", `halted at ${line.halt}`];
  if (line.pause) return ["waits", line.pause.txid ? `paused behind ${line.pause.txid}` : "paused"];
  const behind = line.destinations.find((of) => !of.detached_at && of.waits_since && Date.parse(line.at) - Date.parse(of.waits_since) > PATIENCE);
  if (behind) return ["waits", `${behind.destination} is behind`];
  if (line.unattended) return ["waits", "no maintenance"];
  const first = line.unfinished.find((of) => of.revision === 0);
  if (first) return first.waits === "turn" ? ["waits", `${first.txid} waits for ${first.before}`] : ["works", `${first.txid}: ${first.waits}`];
  const detached = line.destinations.find((of) => of.detached_at);
  if (detached) return ["waits", `${detached.destination} is detached`];
  return ["fine", line.last_txid ? "up to date" : "not begun"];
}

function Behind({ lag }: { lag: Lag | undefined }) {
  if (!lag) return <>–</>;
  if (!lag.is_told || lag.is_made_again) return <Badge kind="halted">{lag.is_made_again ? "another topic" : "no topic"}</Badge>;
  return <>{number(lag.records)}{lag.seconds !== null && `, ${seconds(lag.seconds)}`}{lag.lost > 0 && <> <Badge kind="halted">{number(lag.lost)} lost</Badge></>}</>;
}

function Kept({ lag, now }: { lag: Lag | undefined; now: string }) {
  if (!lag?.deleted_at) return <>–</>;
  const left = (Date.parse(lag.deleted_at) - Date.parse(now)) / 1000;
  return left < 6 * 3600 ? <Badge kind="halted">{left > 0 ? seconds(left) : "now"}</Badge> : <>{seconds(left)}</>;
}

export function LinesPage() {
  const lines = useAsked<Lines>("pipelines", {}, 5);
  const lags = useAsked<Lags>("lag", {}, 15);
  const [wanted, setWanted] = useState("");
  const by = new Map((lags.value?.lags ?? []).map((lag) => [lag.pipeline, lag]));
  const found = (lines.value?.pipelines ?? []).filter((line) => line.pipeline.includes(wanted.trim()));
  const worst = (line: Line) => ["halted", "waits", "works", "fine"].indexOf(stands(line)[0]);
  const unknown = [...(lines.value?.unknown ?? []), ...(lags.value?.unknown ?? [])];
  return (
    <>
      <h1>Transactions</h1>
      <Answer error={lines.error} waits={!lines.value} />
      {unknown.map((of) => <p key={of.code + of.message} role="alert" className="fault">{of.code}: {of.message} ({of.pipelines.join(", ")})</p>)}
      {lines.value && (
        <>
          <label className="search">Filter by name <input type="search" value={wanted} onChange={(e) => setWanted(e.target.value)} /></label>
          <Table label="All pipelines" head={["Pipeline", "State", "Head", "In flight", "Behind", "Kept for", "Last 10 min", "Last commit"]} empty={lines.value.pipelines.length ? `None of ${counted(lines.value.pipelines.length, "pipeline")} has “${wanted.trim()}” in its name.` : "No pipeline is here that you may see."}>
            {[...found].sort((a, b) => worst(a) - worst(b) || a.pipeline.localeCompare(b.pipeline)).map((line) => {
              const [kind, said] = stands(line);
              return (
                <tr key={line.pipeline}>
                  <th scope="row"><a href={to(line.pipeline)}>{line.pipeline}</a></th>
                  <td><Badge kind={kind}>{said}</Badge></td>
                  <td className="n">{number(line.head)}</td>
                  <td className="n">{[number(line.in_flight), ...revised(line)].join(", ")}</td>
                  <td className="n"><Behind lag={by.get(line.pipeline)} /></td>
                  <td className="n"><Kept lag={by.get(line.pipeline)} now={line.at} /></td>
                  <td className="n">{number(line.rate.transactions)} / {counted(line.rate.records, "record")}</td>
                  <td>{ago(line.committed_at, line.at)}</td>
                </tr>
              );
            })}
          </Table>
        </>
      )}
    </>
  );
}
