import { createContext, type ReactNode, useContext, useEffect, useRef, useState } from "react";
import { type Moved, move } from "./api";

export interface Offer { name: string; label: string; does: string; said: Record<string, unknown> }

const Opens = createContext<(offer: Offer) => void>(() => undefined);

/** A button that opens what a move would do. */
export function MoveButton({ offer }: { offer: Offer }) {
  const open = useContext(Opens);
  return <button type="button" onClick={() => open(offer)}>{offer.label}</button>;
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
      <h2 id="move">{offer.label}: {pipeline}</h2>
      <p>{offer.does}</p>
      {error && <p role="alert" className="fault">{error}</p>}
      {made ? (
        <div role="status">{made.said.map((line) => <p key={line}>{line}</p>)}</div>
      ) : tried ? (
        <>
          <h3>What it would do</h3>
          <ul>{tried.said.map((line) => <li key={line}>{line}</li>)}</ul>
          <label>Reason, which the history keeps
            <input required value={reason} onChange={(e) => setReason(e.target.value)} maxLength={500} /></label>
        </>
      ) : (
        !error && <p role="status" className="quiet">Looking what it would do…</p>
      )}
      <div className="row">
        <button type="button" onClick={close}>{made || error ? "Close" : "Cancel"}</button>
        {!made && <button className="main" disabled={busy || !tried || !reason.trim()}>{offer.label}</button>}
      </div>
    </form>
  );
}
