import { useEffect } from "react";
import { Answer } from "./parts";
import { to, useAsked } from "./use";

interface Runs { runs: { txid: number; revision: number }[] }

/** Goes from a run of Airflow to the transaction that it worked on last. */
export function RunPage({ name, run }: { name: string; run: string }) {
  const found = useAsked<Runs>(`pipelines/${encodeURIComponent(name)}/runs`, { run_id: run }, 5);
  const txid = found.value?.runs[0]?.txid ?? null;
  useEffect(() => {
    if (txid !== null) location.replace(to(name, txid));
  }, [name, txid]);
  return (
    <>
      <h1><a href={to(name)}>{name}</a>, run {run}</h1>
      <Answer error={found.error} waits={!found.value} />
      {found.value && txid === null && <p>It has worked on no transaction: it has not begun yet, or found nothing to do; the log of its task begin says why.</p>}
    </>
  );
}
