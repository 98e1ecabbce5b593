import { createContext, type ReactNode, useContext, useEffect, useRef, useState } from "react";
import { type Moved, type Standing, move } from "./api";
import { called } from "./format";
import { Words } from "./parts";

/** A move as a button offers it; `title` says of what. What is `grave` gives up records, or work that is done. */
export interface Offer { name: string; label: string; title: string; does: string; said: Record<string, unknown>; grave?: boolean }

const Opens = createContext<(offer: Offer) => void>(() => undefined);

/** A button that opens what a move would do. */
export function MoveButton({ offer, disabled }: { offer: Offer; disabled?: boolean }) {
  const open = useContext(Opens);
  return <button type="button" className={offer.grave ? "grave" : undefined} disabled={disabled} onClick={() => open(offer)}>{offer.label}</button>;
}

/** The moves that an unfinished transaction, or its revision, allows as it stands. */
export function MovesOf({ pipeline, of }: { pipeline: string; of: Standing }) {
  const title = (label: string) => `${label} ${called(of.txid, of.revision)} of ${pipeline}`;
  return (
    <>
      {of.halted_at && <MoveButton offer={{ name: "retry", label: "Retry", title: title("Retry"), said: { txid: of.txid }, does: "The halt is lifted; the next run of any kind goes on with this transaction." }} />}
      {of.revision === 0 && of.state === "OPEN" && <MoveButton offer={{ name: "abort", label: "Abort", title: title("Abort"), grave: true, said: { txid: of.txid }, does: "What its jobs have written counts for nothing; the next run tries it again." }} />}
      {of.revision === 0 && <MoveButton offer={{ name: "void", label: "Void", title: title("Void"), grave: true, said: { txid: of.txid }, does: "It commits nothing; the line goes on without its records." }} />}
    </>
  );
}

/** The dialog of all moves of a page: what they were offered for may be gone from the page when they are made. */
export function Moves({ pipeline, done, children }: { pipeline: string; done: () => void; children: ReactNode }) {
  const [offer, setOffer] = useState<Offer | null>(null);
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    if (offer) dialog.current?.showModal();
  }, [offer]);
  return (
    <Opens.Provider value={setOffer}>
      {children}
      <dialog ref={dialog} aria-labelledby="move" onClose={() => { setOffer(null); done(); }}>
        {offer && <Asked pipeline={pipeline} offer={offer} close={() => dialog.current?.close()} />}
      </dialog>
    </Opens.Provider>
  );
}

/** A move is made with a reason, and only if it would still do what was read. */
function Asked({ pipeline, offer, close }: { pipeline: string; offer: Offer; close: () => void }) {
  const [tried, setTried] = useState<Moved | null>(null);
  const [made, setMade] = useState<Moved | null>(null);
  const [error, setError] = useState<string | null>(null);
  const [reason, setReason] = useState("");
  const [busy, setBusy] = useState(false);

  const look = () => move(pipeline, offer.name, { ...offer.said, dry_run: true });
  useEffect(() => {
    let isLeft = false;
    look().then((found) => isLeft || setTried(found), (failed: Error) => isLeft || setError(failed.message));
    return () => { isLeft = true; };
  }, [pipeline, offer]);

  async function make() {
    setBusy(true);
    setError(null);
    try {
      setMade(await move(pipeline, offer.name, { ...offer.said, dry_run: false, reason, confirm: tried?.confirm }));
    } catch (failed) {
      setError((failed as Error).message);
      setTried(await look().catch(() => null));
    }
    setBusy(false);
  }
  return (
    <form onSubmit={(event) => { event.preventDefault(); if (!made && !busy) void make(); }}>
      <h2 id="move">{offer.title}</h2>
      <p>{offer.does}</p>
      {error && <p role="alert" className="fault"><Words of={error} /></p>}
      {made ? (
        <div role="status">{made.said.map((line) => <p key={line}><Words of={line} /></p>)}</div>
      ) : tried ? (
        <>
          <h3>What it would do</h3>
          <ul>{tried.said.map((line) => <li key={line}><Words of={line} /></li>)}</ul>
          <label>Reason, which the history keeps
            <input required value={reason} onChange={(e) => setReason(e.target.value)} maxLength={500} /></label>
        </>
      ) : (
        !error && <p role="status" className="quiet">Looking what it would do…</p>
      )}
      <div className="row">
        <button type="button" onClick={close}>{made || error ? "Close" : "Cancel"}</button>
        {!made && <button className={offer.grave ? "main grave" : "main"} disabled={busy || !tried || !reason.trim()}>{offer.label}</button>}
      </div>
    </form>
  );
}
