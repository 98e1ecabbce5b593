/*
 * Sinks elsewhere, as a Promela model, for `make model`: the decision first, then forward only.
 *
 * What the other two models prove of claims, epochs and gates is taken for granted here: a row comes to be PREPARED,
 * once for each of its epochs, and whoever commits is any actor at any time. An actor may stop between any two of its
 * steps and another one does the same work, so each is a zombie to the others.
 *
 * A step is one change of all outside sinks: a group of transactions, or one revision. Steps are numbered densely. Each
 * sink compares its mark and moves it in one transaction of its own, which is one `atomic` here.
 */
#ifndef N
#define N 3            /* transactions, at most 3 */
#endif
#ifndef REVISIONS
#define REVISIONS 0    /* at most 2 */
#endif
#ifndef SINKS
#define SINKS 1        /* outside, at most 2 */
#endif
#ifndef ACTORS
#define ACTORS 2
#endif
#ifndef STOPS
#define STOPS 2        /* actors that stop for good in their work */
#endif
#ifndef ABORTS
#define ABORTS 0       /* rows that are aborted before they are decided, by a person or a gate */
#endif
#ifndef VOIDS
#define VOIDS 0
#endif
#ifndef MISFITS
#define MISFITS 0      /* rows that the ledger's own sinks do not take, found out before the decision */
#endif
#ifndef JAMS
#define JAMS 0         /* folds of the ledger's own sinks that fail after the decision, until a person has helped */
#endif
#ifndef GONE
#define GONE 0         /* sinks that are lost for good */
#endif
#ifndef FOREIGN
#define FOREIGN 0      /* marks that somebody else moves */
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
#ifndef WRITERS
#define WRITERS 0      /* with 1, tasks write rows into the sink, behind fences, and epochs count */
#endif
#ifndef PLANT
#define PLANT 0
#endif
#define ROWS 6
#define BIT(i) (1 << (i))

mtype:state = { NONE, OPEN, PREPARED, COMMITTING, COMMITTED, ABORTED, VOIDED };

typedef Row { mtype:state state; byte txid; byte epoch }
/* The ledger: what one database transaction changes at once. */
typedef Ledger {
    Row row[ROWS];
    byte head;
    byte step;          /* the last that was decided */
    byte token;         /* its random number, which no other step ever has */
    byte before;        /* the token of the step before it */
    bool open;          /* it is decided and not finished */
    byte members;       /* its rows */
    byte shown[N + 1];  /* the row that the ledger's own sinks show of each transaction */
    bool attached[2];
    byte revised
}
Ledger ledger;
#if RESTORES
Ledger backup;
bool saved;

inline copied(to, it) {
    for (q : 0 .. ROWS - 1) {
        to.row[q].state = it.row[q].state; to.row[q].txid = it.row[q].txid; to.row[q].epoch = it.row[q].epoch
    }
    for (q : 0 .. N) { to.shown[q] = it.shown[q] }
    q = 0;
    to.head = it.head; to.step = it.step; to.token = it.token; to.before = it.before; to.open = it.open;
    to.members = it.members; to.attached[0] = it.attached[0]; to.attached[1] = it.attached[1]; to.revised = it.revised
}
#endif

typedef Sink {
    byte mark;
    byte token;
    bool gone;
    byte shown[N + 1];
    /* of each row, by a bit for each epoch: fences that are there, that are closed, and rows that tasks have written */
    byte made[ROWS];
    byte closed[ROWS];
    byte rows[ROWS]
}
Sink sink[2];

byte tokens = 1;        /* the last token that was drawn; that of step 0 is 1 */
byte stops = STOPS, aborts = ABORTS, voids = VOIDS, misfits = MISFITS, jams = JAMS;
byte lost = GONE, foreign = FOREIGN, detaches = DETACHES, attaches = ATTACHES, restores = RESTORES;
bool restored;

#define STATE(i) ledger.row[i].state
#define UNDECIDED(i) (STATE(i) == OPEN || STATE(i) == PREPARED || STATE(i) == ABORTED)
#define SUPERSEDED(i) (i == N + 1 && ledger.revised == 2 && ledger.row[N + 1].txid == ledger.row[N + 2].txid)

/* What an outside sink has of a row is just what its votes name: the writer of the row's last epoch. */
inline written(k, i) {
#if WRITERS
    assert(sink[k].rows[i] == BIT(ledger.row[i].epoch))
#else
    skip
#endif
}

/* Readers of the ledger's sinks see a prefix of the line; those of an attached sink at most one step more of it. */
inline readers() {
    d_step {
        for (q : 1 .. N) {
            assert(ledger.shown[q] == 0 || (q <= ledger.head && STATE(ledger.shown[q]) == COMMITTED));
            assert(q > ledger.head || ledger.shown[q] != 0 || STATE(q) == VOIDED);
            for (p : 0 .. SINKS - 1) {
                if
                :: ledger.attached[p] && !sink[p].gone && !restored && sink[p].token != 0 ->
                    assert(sink[p].shown[q] == ledger.shown[q] || (ledger.open && sink[p].mark == ledger.step
                        && STATE(sink[p].shown[q]) == COMMITTING && ledger.members & BIT(sink[p].shown[q])));
                    if
                    :: sink[p].shown[q] -> written(p, sink[p].shown[q])
                    :: else
                    fi
                :: else
                fi
            }
        }
        p = 0; q = 0
    }
}

/* The outside sink takes the rows of a step, in the order of the line. */
inline take(k, these) {
    for (q : 1 .. N + REVISIONS) {
        if
        :: these & BIT(q) ->
            p = ledger.row[q].txid;
            if
            :: !restored && ledger.attached[k] ->
                assert(q > N -> sink[k].shown[p] < q : sink[k].shown[p] == 0);
                assert(STATE(q) == COMMITTING)
            :: else
            fi;
            sink[k].shown[p] = q;
#if WRITERS
            /* What the manifest lacks is deleted, and no task of any epoch adds to it from here on. */
#if PLANT != 66 /* the step leaves the rows that its manifest lacks */
            sink[k].rows[q] = sink[k].rows[q] & BIT(ledger.row[q].epoch);
#endif
#if PLANT == 67 /* the step closes the fence of its own epoch alone */
            sink[k].closed[q] = sink[k].closed[q] | BIT(ledger.row[q].epoch)
#else
            sink[k].closed[q] = 255
#endif
#endif
        :: else
        fi
    }
    q = 0; p = 0
}

#define MAY_STOP if :: atomic { stops -> stops--; goto rest } :: true fi

proctype Actor() {
    byte r, st, tok, was, these, k, q, p, done;
    byte copy[N + 1];
    bool goes_on;
end:
    do
    /* The decision, under the pipeline's lock. Every member is folded in a savepoint first: only what fits is decided. */
    :: atomic {
        !ledger.open && (
            (ledger.head < N && STATE(ledger.head + 1) == PREPARED)
            || (REVISIONS >= 1 && STATE(N + 1) == PREPARED && !SUPERSEDED(N + 1)) || (REVISIONS >= 2 && STATE(N + 2) == PREPARED)) ->
        these = 0;
        if
        :: ledger.head < N && STATE(ledger.head + 1) == PREPARED ->
            r = ledger.head + 1; goes_on = true;
            do
            :: goes_on && r <= N && STATE(r) == PREPARED ->
                if
                :: misfits -> misfits--; goes_on = false;
                    if :: these == 0 -> STATE(r) = ABORTED :: else fi
                :: these = these | BIT(r); r++
                :: these != 0 -> goes_on = false /* a group need not take all */
                fi
            :: else -> break
            od;
            goes_on = false
        :: REVISIONS >= 1 && STATE(N + 1) == PREPARED && !SUPERSEDED(N + 1) -> these = BIT(N + 1)
        :: REVISIONS >= 2 && STATE(N + 2) == PREPARED -> these = BIT(N + 2)
        fi;
        r = 0;
        if
        :: these ->
            for (q : 1 .. N + REVISIONS) { if :: these & BIT(q) -> STATE(q) = COMMITTING :: else fi };
            q = 0;
            tokens++;
            ledger.before = ledger.token; ledger.token = tokens; ledger.step++; ledger.members = these; ledger.open = true;
            printf("actor %d: step %d is decided\n", _pid, ledger.step)
        :: else
        fi;
        these = 0
       }

    /* Whoever finds an open step goes on with it: its sinks in their order, then the ledger's own and the head. */
    :: atomic {
        ledger.open -> st = ledger.step; tok = ledger.token; was = ledger.before; these = ledger.members; k = 0; done = 0
       }
        do
        :: k < SINKS ->
            atomic {
                if
                :: !ledger.attached[k] -> k++
                :: else -> goto apply
                fi
            }
            goto again;
apply:      MAY_STOP;
            atomic {
                if
                :: sink[k].gone -> goto rest
#if PLANT == 60 /* the sink does not compare its mark in the transaction that applies */
                :: !sink[k].gone -> take(k, these); sink[k].mark = st; sink[k].token = tok
#elif PLANT == 61 /* a mark is a number alone, and whoever moved it */
                :: !sink[k].gone && sink[k].mark == st -> skip
                :: !sink[k].gone && sink[k].mark + 1 == st -> take(k, these); sink[k].mark = st; sink[k].token = tok
                :: else -> goto rest
#else
                :: !sink[k].gone && sink[k].mark == st && sink[k].token == tok -> skip
                :: !sink[k].gone && sink[k].mark + 1 == st && sink[k].token == was ->
                    printf("actor %d: sink %d takes step %d\n", _pid, k, st);
                    take(k, these); sink[k].mark = st; sink[k].token = tok
                :: else -> goto rest /* a mark that is neither: a stop that shows both numbers */
#endif
                fi;
                done = done | BIT(k); k++;
                readers()
            }
again:      skip
        :: else -> break
        od;
        MAY_STOP;
        /* The ledger's own sinks, the states and the head, in one. */
        atomic {
            if
            :: ledger.open && ledger.token == tok ->
#if PLANT != 70 /* whoever finishes does not look again at which sinks are attached */
                for (q : 0 .. SINKS - 1) {
                    if :: ledger.attached[q] && !(done & BIT(q)) -> goto rest :: else fi
                }
#endif
                for (q : 0 .. SINKS - 1) { assert(!ledger.attached[q] || done & BIT(q)) }
                q = 0;
                if :: jams -> jams--; goto rest :: true fi;
                for (q : 1 .. N + REVISIONS) {
                    if
                    :: these & BIT(q) ->
                        assert(STATE(q) == COMMITTING);
                        STATE(q) = COMMITTED; ledger.shown[ledger.row[q].txid] = q;
                        if :: q <= N -> ledger.head = q :: else fi
                    :: else
                    fi
                }
                q = 0;
                ledger.open = false; ledger.members = 0;
                do :: ledger.head < N && STATE(ledger.head + 1) == VOIDED -> ledger.head++ :: else -> break od;
                printf("actor %d: step %d is finished\n", _pid, st);
                readers()
            :: else
            fi
        }
rest:   atomic { r = 0; st = 0; tok = 0; was = 0; these = 0; k = 0; q = 0; p = 0; done = 0 }

#if ATTACHES
    /* attach: the sink is made anew from what is committed, in one change of its own that compares its mark */
    :: atomic {
        attaches && !ledger.open && ((!ledger.attached[0] && !sink[0].gone)
            || (SINKS == 2 && !ledger.attached[1] && !sink[1].gone)) ->
        attaches--;
        if
        :: !ledger.attached[0] && !sink[0].gone -> k = 0
        :: SINKS == 2 && !ledger.attached[1] && !sink[1].gone -> k = 1
        fi;
        st = ledger.step; tok = ledger.token; r = sink[k].mark; was = sink[k].token;
        for (q : 1 .. N) { copy[q] = ledger.shown[q] }
        q = 0
       }
        MAY_STOP;
        atomic {
            if
#if PLANT == 63 /* it is made anew whatever its mark is meanwhile */
            :: !sink[k].gone ->
#else
            :: !sink[k].gone && sink[k].mark == r && sink[k].token == was ->
#endif
                for (q : 1 .. N) { sink[k].shown[q] = copy[q] }
                q = 0; sink[k].mark = st; sink[k].token = tok;
#if WRITERS
                for (q : 1 .. N) { if :: copy[q] -> sink[k].rows[copy[q]] = BIT(ledger.row[copy[q]].epoch); sink[k].closed[copy[q]] = 255 :: else fi }
                q = 0;
#endif
                printf("actor %d: sink %d is made anew at step %d\n", _pid, k, st)
            :: else -> goto unattached
            fi
        }
        MAY_STOP;
        atomic {
            if
#if PLANT == 64 /* nobody looks whether steps were taken meanwhile */
            :: !ledger.open ->
#else
            :: !ledger.open && ledger.step == st && ledger.token == tok ->
#endif
                ledger.attached[k] = true; readers()
            :: else
            fi
        }
unattached: atomic { for (q : 1 .. N) { copy[q] = 0 } }
        goto rest
#endif
    od
}

#if WRITERS
/* Tasks of one row, first of its epoch 1, then perhaps of the next; each is a process that may be late. */
proctype Task(byte i; byte e; byte k) {
    byte q, p;
    /* The fence is made before the job begins; the transaction that makes it looks at the mark's row. */
end:
    atomic { ledger.row[i].epoch >= e };
    atomic {
        if
#if PLANT == 68 /* a fence is made though its transaction is applied */
        :: true -> sink[k].made[i] = sink[k].made[i] | BIT(e); sink[k].closed[i] = sink[k].closed[i] & ~BIT(e)
#else
        :: !(sink[k].closed[i] & BIT(e)) -> sink[k].made[i] = sink[k].made[i] | BIT(e)
        :: else -> goto end_task
#endif
        fi
    }
    /* The rows, in a transaction that locks the fence FOR SHARE and needs it open. */
    atomic {
        if
#if PLANT == 65 /* the rows are written without a look at the fence */
        :: true ->
#else
        :: (sink[k].made[i] & BIT(e)) && !(sink[k].closed[i] & BIT(e)) ->
#endif
            sink[k].rows[i] = sink[k].rows[i] | BIT(e); readers()
        :: else -> goto end_task
        fi
    }
    /* The vote, in the ledger: of this epoch only. */
    atomic {
        if
        :: STATE(i) == OPEN && ledger.row[i].epoch == e -> STATE(i) = PREPARED
        :: else
        fi
    }
end_task: skip
}
#endif

#if PLANT == 69 /* what is decided can still be voided */
#define MAY_VOID(i) (UNDECIDED(i) || STATE(i) == COMMITTING)
#else
#define MAY_VOID(i) (UNDECIDED(i))
#endif

/* What happens to rows, and what people and the world do. */
proctype Fate() {
    byte r, q, p;
end:
    do
#if !WRITERS
    :: atomic {
        if
        :: STATE(1) == OPEN -> STATE(1) = PREPARED
        :: STATE(2) == OPEN -> STATE(2) = PREPARED
        :: STATE(3) == OPEN -> STATE(3) = PREPARED
        :: STATE(4) == OPEN -> STATE(4) = PREPARED
        :: STATE(5) == OPEN -> STATE(5) = PREPARED
        fi
       }
#endif
    :: atomic {
        if
        :: aborts && (STATE(1) == OPEN || STATE(1) == PREPARED) -> STATE(1) = ABORTED
        :: aborts && (STATE(2) == OPEN || STATE(2) == PREPARED) -> STATE(2) = ABORTED
        fi;
        aborts--
       }
    /* the next epoch of what was aborted */
    :: atomic {
        if
        :: STATE(1) == ABORTED -> r = 1
        :: N >= 2 && STATE(2) == ABORTED -> r = 2
        :: N >= 3 && STATE(3) == ABORTED -> r = 3
        fi;
        STATE(r) = OPEN; ledger.row[r].epoch++; r = 0 }
    /* moves.void */
    :: atomic {
        if
        :: voids && MAY_VOID(1) -> r = 1
        :: voids && N >= 2 && MAY_VOID(2) -> r = 2
        :: voids && N >= 3 && MAY_VOID(3) -> r = 3
        fi;
        voids--; STATE(r) = VOIDED;
        if
        :: ledger.open -> skip /* whoever finishes the step goes on over it */
        :: else -> do :: ledger.head < N && STATE(ledger.head + 1) == VOIDED -> ledger.head++ :: else -> break od
        fi;
        printf("a person voids transaction %d\n", r); r = 0; readers() }
#if REVISIONS
    /* revise.revise: it is refused while one is decided */
    :: atomic { ledger.revised < REVISIONS && ledger.head >= 1 && (ledger.revised == 0 || STATE(N + 1) != COMMITTING) ->
        if :: r = 1 :: ledger.head >= 2 -> r = 2 fi;
        ledger.revised++;
        if
        :: ledger.revised == 2 && ledger.row[N + 1].txid == r && UNDECIDED(N + 1) -> STATE(N + 1) = ABORTED
        :: else
        fi;
        ledger.row[N + ledger.revised].txid = r; ledger.row[N + ledger.revised].epoch = 1;
        if :: STATE(r) == VOIDED -> ledger.revised--; ledger.row[N + ledger.revised + 1].txid = 0; ledger.row[N + ledger.revised + 1].epoch = 0
        :: else -> STATE(N + ledger.revised) = OPEN
        fi;
        r = 0 }
#endif
    :: atomic { lost -> lost--; if :: sink[0].gone = true :: SINKS == 2 -> sink[1].gone = true fi; printf("a sink is lost\n") }
    :: atomic { foreign -> foreign--; sink[0].token = 0; if :: sink[0].mark++ :: true fi; printf("somebody moves the mark of sink 0\n") }
    :: atomic {
        if :: detaches && ledger.attached[0] -> r = 0 :: detaches && SINKS == 2 && ledger.attached[1] -> r = 1 fi;
        detaches--; ledger.attached[r] = false; r = 0; printf("a person detaches a sink\n") }
#if RESTORES
    :: atomic { !saved && restores && !restored -> saved = true; copied(backup, ledger) }
    :: atomic { saved && restores -> restores--; restored = true; copied(ledger, backup); printf("a backup comes in place of the ledger\n") }
#endif
    od
}

#define OVER(i) (STATE(i) == COMMITTED || STATE(i) == VOIDED || STATE(i) == NONE || (i > N && STATE(i) == ABORTED))
/* A sink that is gone, or whose mark somebody moved, stops the line until it is detached. */
#define STOPPED(k) (ledger.attached[k] && (sink[k].gone || (sink[k].token != ledger.token && sink[k].token != ledger.before) || (ledger.open && sink[k].mark != ledger.step && sink[k].mark + 1 != ledger.step)))
#define SAME(k) (!ledger.attached[k] || sink[k].gone || (sink[k].mark == ledger.step && sink[k].token == ledger.token \
    && sink[k].shown[1] == ledger.shown[1] && (N < 2 || sink[k].shown[2] == ledger.shown[2]) && (N < 3 || sink[k].shown[N] == ledger.shown[N])))
proctype Final() {
end:
    timeout -> assert(STOPPED(0) || STOPPED(1) || (!ledger.open && ledger.head == N && OVER(1) && OVER(2) && OVER(3)
        && OVER(4) && OVER(5) && SAME(0) && SAME(1)))
}

init {
    byte i;
    atomic {
        for (i : 0 .. ROWS - 1) { STATE(i) = NONE }
        for (i : 1 .. N) { STATE(i) = OPEN; ledger.row[i].txid = i; ledger.row[i].epoch = 1 }
        ledger.token = 1; ledger.before = 1;
        for (i : 0 .. SINKS - 1) { ledger.attached[i] = true; sink[i].token = 1 }
        for (i : 1 .. ACTORS) { run Actor() }
#if WRITERS
        for (i : 1 .. N) { run Task(i, 1, 0); if :: ABORTS -> run Task(i, 2, 0) :: else fi }
#endif
        run Fate();
        run Final()
    }
}
