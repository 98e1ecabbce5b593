/*
 * Destinations of a sink with keys, as a Promela model, for `make model`: copies of a table that has a row a key.
 *
 * What `outside.pml` proves of marks, steps and the line is taken for granted here: there is one destination, and
 * whatever has its turn may be decided. Here is what that model leaves out: a destination gets all steps at once that
 * it lacks, of each key that they have touched the row that it has after the last of them, and which keys those are is
 * told by deltas, which revisions replace and compaction merges.
 *
 * The table shows of each key the row of the last transaction whose delta has it, told apart by the token of the step
 * that has brought that delta; of a ledger that was restored, and took other ways, no token comes twice.
 */
#ifndef N
#define N 2            /* transactions, at most 2 */
#endif
#ifndef REVISIONS
#define REVISIONS 0    /* at most 2 */
#endif
#ifndef ACTORS
#define ACTORS 2
#endif
#ifndef STOPS
#define STOPS 2        /* actors that stop for good in their work */
#endif
#ifndef COMPACTIONS
#define COMPACTIONS 0
#endif
#ifndef DETACHES
#define DETACHES 0
#endif
#ifndef ATTACHES
#define ATTACHES 0
#endif
#ifndef RESTORES
#define RESTORES 0     /* a backup comes in place of the ledger */
#endif
#ifndef PLANT
#define PLANT 0
#endif
#define KEYS 2
#define STEPS (N + REVISIONS)
#define BIT(i) (1 << (i))
#define WAS(number, key) ((number) * KEYS + (key))

/* The ledger: what one database transaction changes at once. */
typedef Ledger {
    byte head;
    byte step;                   /* the last */
    byte token[STEPS + 1];       /* of each step; that of 0 is where the destination starts */
    byte changes[STEPS + 1];     /* the transaction of each step */
    byte exchanged[STEPS + 1];   /* the keys of the delta that a revision's step has replaced */
    byte delta[3];               /* the keys of each transaction's delta */
    byte by[3];                  /* the token of the step that has brought it */
    byte compacted;              /* up to here deltas are merged, and do not tell their keys any more */
    byte revised;
    byte was[(STEPS + 1) * KEYS]; /* what was shown of each key after each step */
    bool attached;
    byte reached                 /* a step that the destination has for certain */
}
Ledger ledger;

byte mark, markToken;            /* of the destination, */
byte held[KEYS];                 /* and its row of each key */

#if RESTORES
Ledger backup;
bool saved;

inline copied(to, it) {
    for (q : 0 .. STEPS) {
        to.token[q] = it.token[q]; to.changes[q] = it.changes[q]; to.exchanged[q] = it.exchanged[q]
    }
    for (q : 0 .. 2) { to.delta[q] = it.delta[q]; to.by[q] = it.by[q] }
    for (q : 0 .. (STEPS + 1) * KEYS - 1) { to.was[q] = it.was[q] }
    q = 0;
    to.head = it.head; to.step = it.step; to.compacted = it.compacted; to.revised = it.revised;
    to.attached = it.attached; to.reached = it.reached
}
#endif

byte tokens = 1;                 /* the last token that was drawn */
byte stops = STOPS, compactions = COMPACTIONS, detaches = DETACHES, attaches = ATTACHES, restores = RESTORES;
bool restored;

#define HAS(txid, key) (ledger.delta[txid] & BIT(key))
#define SHOWN(key) (HAS(2, key) -> ledger.by[2] : (HAS(1, key) -> ledger.by[1] : 0))
#define IS_STEP(number, itsToken) ((number) <= ledger.step && ledger.token[number] == (itsToken))
#define KNOWN IS_STEP(mark, markToken)
#define BEHIND (ledger.attached && ledger.reached < ledger.step)
/* A step behind one, of a transaction whose delta is merged: which keys it has touched nobody knows any more. */
#define IS_LOST(number, after) \
    ((number) <= ledger.step && (number) > (after) && ledger.changes[number] <= ledger.compacted)
#define ARE_LOST(after) (IS_LOST(1, after) || (STEPS >= 2 && IS_LOST(2, after)) \
    || (STEPS >= 3 && IS_LOST(3, after)) || (STEPS >= 4 && IS_LOST(4, after)))
/* The mark of a ledger from before its restore, or too old a one: the line halts until a person detaches it. */
bool old;
#define HALTS (ledger.attached && ((restored && !KNOWN) || (old && ARE_LOST(mark))))

/* An attached destination has the table as it was after the step of its mark. */
inline readers() {
    d_step {
        if
        :: ledger.attached && !HALTS ->
            assert(KNOWN);
            for (p : 0 .. KEYS - 1) { assert(held[p] == ledger.was[WAS(mark, p)]) }
        :: else
        fi;
        p = 0
    }
}

#if PLANT == 87 /* deltas are merged while an attached destination lacks a step */
#define MAY_COMPACT true
#else
#define MAY_COMPACT (!BEHIND)
#endif
#define FOLLOWS (ledger.attached && ledger.reached < ledger.step && KNOWN && mark >= ledger.reached && !ARE_LOST(mark))
#define MAY_STOP if :: atomic { stops -> stops--; goto rest } :: true fi

/* A delta that touches some keys: both, or one. */
inline some(these) {
    if :: these = BIT(0) :: these = BIT(1) :: these = BIT(0) | BIT(1) fi
}

/* What the table shows after a step is what readers see: of a group, which is one change, after its last one. */
inline recorded(txid, taken) {
    ledger.step++; tokens++;
    ledger.token[ledger.step] = tokens; ledger.changes[ledger.step] = txid; ledger.exchanged[ledger.step] = taken;
    ledger.by[txid] = tokens;
    for (p : 0 .. KEYS - 1) { ledger.was[WAS(ledger.step, p)] = SHOWN(p) }
    p = 0
}

proctype Actor() {
    byte r, was, st, tok, touched, taken, p, s;
    byte rows[KEYS];
end:
    do
    /* The decision, under the pipeline's lock: a group, all of whose steps are recorded, */
    :: atomic { ledger.head < N && !BEHIND ->
        do
        :: ledger.head < N ->
            ledger.head++; some(touched); ledger.delta[ledger.head] = touched; recorded(ledger.head, 0);
            if :: true -> break :: true fi
        :: else -> break
        od;
        printf("actor %d: the ledger is at step %d\n", _pid, ledger.step);
        readers(); goto rest
       }
    /* or a revision, which replaces a delta by one with other keys, or none. */
    :: atomic { ledger.revised < REVISIONS && ledger.head > ledger.compacted && !BEHIND ->
        if :: ledger.compacted < 1 -> r = 1 :: ledger.head == 2 -> r = 2 fi;
        ledger.revised++;
#if PLANT == 80 /* a revision does not note the keys that it takes away */
        taken = 0;
#elif PLANT == 81 /* a revision notes the keys only while the destination is attached */
        taken = (ledger.attached -> ledger.delta[r] : 0);
#else
        taken = ledger.delta[r];
#endif
        if :: some(touched) :: touched = 0 fi;
        ledger.delta[r] = touched; recorded(r, taken);
        printf("actor %d: a revision of transaction %d is step %d\n", _pid, r, ledger.step);
        readers(); goto rest
       }

    /* follow: the destination's mark, from the destination */
    :: atomic { FOLLOWS -> r = mark; was = markToken }
        /* From the ledger, in one snapshot: all steps behind it, the keys that they touch, and the rows of these. */
        atomic {
            if
            :: !ledger.attached || !IS_STEP(r, was) || r < ledger.reached -> goto rest
#if PLANT != 86 /* nobody looks whether deltas are merged whose keys are asked for */
            :: ARE_LOST(r) -> goto rest
#endif
            :: else
            fi;
            st = ledger.step; tok = ledger.token[st];
            if :: r == st -> goto says :: else fi;
#if PLANT == 83 /* of several steps, the keys of the last one alone are sent */
            s = st;
#elif PLANT == 84 /* a step is sent at a time, with the rows as they are after all */
            s = r + 1; st = s; tok = ledger.token[st];
#else
            s = r + 1;
#endif
            do
            :: s <= st ->
#if PLANT != 86
                touched = touched | ledger.delta[ledger.changes[s]];
#else
                touched = touched | (ledger.changes[s] > ledger.compacted -> ledger.delta[ledger.changes[s]] : 0);
#endif
#if PLANT != 85 /* of a revision only the keys of its own delta are sent */
                touched = touched | ledger.exchanged[s];
#endif
                s++
            :: else -> break
            od;
            s = 0;
#if PLANT == 82 /* the rows are read in a later snapshot than the steps */
            skip
        }
        atomic {
#endif
            for (p : 0 .. KEYS - 1) { rows[p] = SHOWN(p) }
            p = 0
        }
        MAY_STOP;
        /* In the destination: only if its mark is what it was, the rows of the keys, and the new mark. */
        atomic {
            if
#if PLANT == 88 /* the destination does not compare its mark in the change that takes the rows */
            :: true ->
#else
            :: mark == r && markToken == was ->
#endif
                for (p : 0 .. KEYS - 1) {
                    if :: touched & BIT(p) -> held[p] = rows[p] :: else fi
                }
                p = 0; mark = st; markToken = tok;
                printf("actor %d: the destination takes all up to step %d\n", _pid, st);
                readers()
            :: else -> goto rest
            fi
        }
        /* Its answer is lost where the actor stops here. */
        MAY_STOP;
        /* In the ledger: that the destination has this step, if it is one. */
says:   atomic {
            if
            :: ledger.attached && ledger.reached < st && IS_STEP(st, tok) -> ledger.reached = st
            :: else
            fi
        }
rest:   atomic { r = 0; was = 0; st = 0; tok = 0; touched = 0; taken = 0; p = 0; s = 0; rows[0] = 0; rows[1] = 0 }

#if ATTACHES
    /* attach: the mark, then whether it is a step; what comes behind it is sent as it is now */
    :: atomic { attaches && !ledger.attached -> attaches--; r = mark; was = markToken }
        atomic {
            if
            :: !ledger.attached && IS_STEP(r, was) ->
                /* Where its steps cannot be told any more the line halts until it is detached again. */
                old = ARE_LOST(r);
                ledger.attached = true; ledger.reached = r;
                printf("actor %d: the destination is attached at step %d\n", _pid, r)
            :: else
            fi;
            goto rest
        }
    /* or attach --anew: the mark, then the whole table and its last step in one snapshot */
    :: atomic { attaches && !ledger.attached -> attaches--; r = mark; was = markToken }
        atomic {
            st = ledger.step; tok = ledger.token[st];
#if PLANT == 89 /* an attach reads the table in a later snapshot than its last step */
            skip
        }
        atomic {
#endif
            for (p : 0 .. KEYS - 1) { rows[p] = SHOWN(p) }
            p = 0
        }
        MAY_STOP;
        atomic {
            if
            :: mark == r && markToken == was ->
                held[0] = rows[0]; held[1] = rows[1]; mark = st; markToken = tok;
                printf("actor %d: the destination is made anew at step %d\n", _pid, st); readers()
            :: else -> goto rest
            fi
        }
        MAY_STOP;
        atomic {
            if
            :: !ledger.attached && ledger.step == st && ledger.token[st] == tok ->
                ledger.attached = true; ledger.reached = st; old = false; readers()
            :: else
            fi;
            goto rest
        }
#endif
    od
}

/* What maintenance, people and the world do. */
proctype Fate() {
    byte q, p;
end:
    do
    /* compact.compact: it forgets which keys were exchanged too */
    :: atomic { compactions && ledger.compacted < ledger.head && MAY_COMPACT ->
        compactions--; ledger.compacted++;
        for (q : 1 .. STEPS) {
            if
            :: q <= ledger.step && ledger.changes[q] <= ledger.compacted -> ledger.exchanged[q] = 0
            :: else
            fi
        }
        q = 0; printf("maintenance merges deltas up to transaction %d\n", ledger.compacted) }
    :: atomic { detaches && ledger.attached ->
        detaches--; ledger.attached = false; printf("a person detaches the destination\n") }
#if RESTORES
    :: atomic { !saved && restores -> saved = true; copied(backup, ledger) }
    :: atomic { saved && restores ->
        restores--; restored = true; copied(ledger, backup);
        printf("a backup comes in place of the ledger\n"); readers() }
#endif
    od
}

/* In the end all is decided, and the destination has the table, or somebody has to detach it. */
proctype Final() {
end:
    timeout -> assert(HALTS || (ledger.head == N && (!ledger.attached || (KNOWN && mark == ledger.step
        && held[0] == SHOWN(0) && held[1] == SHOWN(1)))))
}

init {
    byte i;
    atomic {
        ledger.token[0] = tokens; markToken = tokens; ledger.attached = true;
        for (i : 1 .. ACTORS) { run Actor() }
        run Fate();
        run Final()
    }
}
