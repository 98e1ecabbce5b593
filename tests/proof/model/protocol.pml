/*
 * The protocol of ratchet as a Promela model, for `make model`.
 *
 * What is one step here is one database transaction there: PostgreSQL makes it whole or not at all, and the row locks
 * that it takes (pipeline, then transaction, then slice) let nobody in between. So a crash between any two statements
 * is a crash before or after a step, and `atomic` stands for `with ledger.begin()`. Where the code reads in one
 * database transaction and decides in a later one, there are two steps here too.
 *
 * Actors are Airflow's task processes. Airflow may think one dead that is not: then a second one does the same work,
 * and the first goes on with its old token at any time, or never (a zombie). A run may be lost or deleted: then nothing
 * of it is started any more, and what was started may go on.
 *
 * Each row of `ratchet.transactions` is a Row: 1 to N the originals, whose number is their txid; the others revisions.
 */
#ifndef N
#define N 3            /* transactions, at most 3 */
#endif
#ifndef S
#define S 1            /* slices of each */
#endif
#ifndef REVISIONS
#define REVISIONS 0    /* clears of what is committed */
#endif
#ifndef ACTORS
#define ACTORS 3
#endif
#ifndef CRASHES
#define CRASHES 2      /* tasks that are started again, the first one dead or a zombie */
#endif
#ifndef LOST
#define LOST 1         /* runs that Airflow loses, or that a person deletes */
#endif
#ifndef NOES
#define NOES 1         /* gates that say no, epochs that a person aborts */
#endif
#ifndef MISFITS
#define MISFITS 0      /* transactions whose data the sinks do not take at their commit */
#endif
#ifndef VOIDS
#define VOIDS 1
#endif
#ifndef RESUMES
#define RESUMES 0      /* clears of an unfinished run, while it works or after */
#endif
#ifndef IN_FLIGHT
#define IN_FLIGHT 3    /* max_in_flight */
#endif
#ifndef MAX_FAILURES
#define MAX_FAILURES 0 /* failures after which the line halts; 0: never */
#endif
#ifndef LOG
#define LOG 0          /* with more than 0, Kafka's log grows so often, and plans are made of its offsets */
#endif
#ifndef PLANT
#define PLANT 0        /* a wrong version of the protocol, which the check has to find */
#endif
#define ROWS 6         /* row[1] to row[N] are originals, row[N + 1] to row[N + REVISIONS] revisions; at most 5 */
#define ALL ((1 << S) - 1)

mtype:state = { OPEN, PREPARED, COMMITTING, COMMITTED, ABORTED, VOIDED };
mtype:air = { PROCESS, COMMIT, WAITING, SETTLE };

typedef Slice {
    byte try;          /* slices.try_number */
    byte vote;         /* the try whose vote stands; 0: not voted */
    byte staged[2]     /* by sink: a bit for each try whose rows are in the stage of this epoch */
}
typedef Row {
    mtype:state state;
    byte txid;
    byte epoch;
    byte claim;
    bool ended;        /* claim_ended */
    byte verdict;      /* the epoch that has passed its gates */
    byte asked;        /* the epoch that they were really asked about */
    byte failures;
    bool halted;       /* halted_at: of an original the line stops here, a revision is given up */
    bool alive;        /* Airflow has the run of this claim, queued or running */
    mtype:air doing;   /* what Airflow starts next for that run */
    byte todo;         /* a bit for each slice whose task is to be started */
    byte done;         /* a bit for each slice whose task has succeeded */
    Slice slice[S]
}
Row row[ROWS];

byte head;             /* pipelines.head */
byte last;             /* pipelines.last_txid */
byte revised;          /* how many revisions there are */

#if LOG
byte stable;           /* the last stable offset of the topic, of which a pipeline has one partition here */
byte from[N + 1], until[N + 1];
#define WAITING_RECORDS (stable > until[last])
#else
#define WAITING_RECORDS true
#endif

/* What readers see: the row whose delta a sink shows of each transaction; and how far a sink outside has been moved. */
typedef Sink { byte shown[N + 1]; byte mark }
Sink sink[2];

byte crashes = CRASHES, lost = LOST, noes = NOES, misfits = MISFITS, voids = VOIDS, resumes = RESUMES;

#define UNFINISHED(i) (row[i].state == OPEN || row[i].state == PREPARED || row[i].state == ABORTED)

#define LEFT(i) (UNFINISHED(i) || row[i].state == COMMITTING)

/* halts.halt: the lowest original at which the line is halted */
#define HALTED(i) (i <= N && row[i].halted && UNFINISHED(i))
#define HALT (HALTED(1) -> 1 : (HALTED(2) -> 2 : (HALTED(3) -> 3 : ROWS)))

/* transactions.is_newest: with at most two revisions, only the first can be followed by another one of its transaction */
#define SUPERSEDED(i) (i == N + 1 && revised == 2 && row[N + 1].txid == row[N + 2].txid)

/* claims.abandoned: nobody works on it; a lease that ran out is no reason while Airflow has the run */
#define ABANDONED(i) (LEFT(i) && !row[i].halted && !SUPERSEDED(i) && (row[i].ended || !row[i].alive) \
    && (i > N || i < HALT))
#define ANY_ABANDONED (ABANDONED(1) || ABANDONED(2) || ABANDONED(3) || ABANDONED(4) || ABANDONED(5))
#define MAY_ALLOCATE (!ANY_ABANDONED && last < N && last - head < IN_FLIGHT && HALT == ROWS)

/* Airflow starts a task, or again one whose process it has lost. */
#define TASK(i, s) (row[i].alive && row[i].doing == PROCESS && (row[i].todo & (1 << s)))
#define COMMITS(i) (row[i].alive && (row[i].doing == COMMIT || \
    (row[i].doing == WAITING && (row[i].state != PREPARED || head + 1 == row[i].txid))))
#define SETTLES(i) (row[i].alive && row[i].doing == SETTLE)

/* The token of a run: its claim on row r. Of an older claim Airflow starts nothing and hears nothing. */
#define MINE (row[r].claim == c && row[r].alive)

/* I2: the plans tile the log, without a gap or an overlap; the ledger's foreign key says so */
inline tiled() {
#if LOG
    d_step {
        for (q : 1 .. last) { assert(from[q] == until[q - 1] && from[q] < until[q]) }
        q = 0
    }
#else
    skip
#endif
}

/* claims.take: the caller holds the pipeline's lock */
inline take(i, afresh) {
    if
    :: row[i].state == ABORTED ->
        row[i].state = OPEN; row[i].epoch++; row[i].verdict = 0; row[i].asked = 0;
#if LOG && PLANT == 14 /* the plan is made anew when it is tried again */
        if :: i <= N -> until[i] = stable; tiled() :: else fi;
#endif
        for (q : 0 .. S - 1) {
#if PLANT != 2 /* a new epoch keeps the votes of the one before */
            row[i].slice[q].vote = 0;
#endif
            row[i].slice[q].try = 0;
            row[i].slice[q].staged[0] = 0; row[i].slice[q].staged[1] = 0
        }
    :: else
    fi;
    row[i].claim++; row[i].ended = false;
    if :: afresh -> row[i].failures = 0; row[i].halted = false :: else fi;
    row[i].alive = true; row[i].doing = PROCESS; row[i].todo = ALL; row[i].done = 0;
    promote(i)
}

/* prepare.prepare_if_complete: the caller holds the transaction's lock */
inline promote(i) {
    all_voted = true;
    for (q : 0 .. S - 1) { if :: row[i].slice[q].vote == 0 -> all_voted = false :: else fi };
    if :: row[i].state == OPEN && all_voted -> row[i].state = PREPARED :: else fi
}

/* claims.end: the caller holds the transaction's lock */
inline end_claim(i) {
    row[i].ended = true;
    if
    :: row[i].state == OPEN || row[i].state == ABORTED ->
        row[i].failures++;
        if
        :: MAX_FAILURES && row[i].failures >= MAX_FAILURES ->
            row[i].halted = true;
            if :: i > N && row[i].state == OPEN -> row[i].state = ABORTED :: else fi
        :: else
        fi
    :: else
    fi
}

/* claims.open_transaction: the caller holds the pipeline's lock */
inline open(i, txn, at_epoch) {
    row[i].state = OPEN; row[i].txid = txn; row[i].epoch = at_epoch; row[i].claim = 1;
    row[i].alive = true; row[i].doing = PROCESS; row[i].todo = ALL
}

/*
 * fold of one row to one sink: exactly what the votes name, once.
 * I1, I3, I5, I7 are these assertions: of each slice the voted try is staged, nothing else of it is shown, and an
 * original is folded in the order of the line.
 */
inline apply(k, i) {
    for (q : 0 .. S - 1) {
        assert(row[i].slice[q].vote != 0);
#if PLANT == 1 /* the whole stage is applied, and not what the votes name */
        applied = row[i].slice[q].staged[k];
#else
        applied = row[i].slice[q].staged[k] & (1 << row[i].slice[q].vote);
#endif
        assert(applied == (1 << row[i].slice[q].vote))
    }
    applied = 0;
    assert(row[i].asked == row[i].epoch);
    assert(i > N -> sink[k].shown[row[i].txid] < i : sink[k].shown[row[i].txid] == 0);
    sink[k].shown[row[i].txid] = i;
    printf("actor %d: sink %d shows row %d of transaction %d\n", _pid, k, i, row[i].txid)
}

#ifdef OUTSIDE
/* The sink outside may be one decided transaction ahead of the ledger's; what is committed is in both. */
#define SHOWN_OUTSIDE(q) \
    ((sink[1].shown[q] == 0 || row[sink[1].shown[q]].state == COMMITTED || row[sink[1].shown[q]].state == COMMITTING) \
    && (sink[0].shown[q] == 0 || sink[1].shown[q] >= sink[0].shown[q]))
#else
#define SHOWN_OUTSIDE(q) (sink[1].shown[q] == sink[0].shown[q])
#endif

/* I4, I5: the sinks of the ledger's database show a prefix of the line, whole, and the same of each transaction. */
inline prefix() {
    d_step {
        for (q : 1 .. N) {
            assert(sink[0].shown[q] == 0 || (q <= head && row[sink[0].shown[q]].state == COMMITTED));
            assert(q > head || sink[0].shown[q] != 0 || row[q].state == VOIDED);
            assert(SHOWN_OUTSIDE(q));
            assert(row[q].state != COMMITTED || sink[0].shown[q] != 0)
        }
        q = 0
    }
}

/*
 * commit.advance: over voided transactions and over those that can be committed now; the caller holds the pipeline's
 * lock. The first that does not fit is undone and ends the group; it is aborted only if this is its own commit (`by`).
 */
inline advance(by) {
    do
    :: head == last -> break
#if PLANT != 5 /* the head stops at a voided successor */
    :: head < last && row[head + 1].state == VOIDED -> head++
#endif
#ifndef OUTSIDE
#if PLANT == 4 /* a group takes successors that no gate has seen */
    :: head < last && row[head + 1].state == PREPARED ->
#else
    :: head < last && row[head + 1].state == PREPARED && row[head + 1].verdict == row[head + 1].epoch ->
#endif
        if
        :: misfits -> misfits--;
            if :: head + 1 == by -> row[by].state = ABORTED :: else fi;
            break
        :: apply(0, head + 1); apply(1, head + 1); row[head + 1].state = COMMITTED; head++
        fi
#endif
    :: else -> break
    od;
    prefix()
}

/* A task's process may die here, or be thought dead: Airflow starts the task again, and this one goes on, or not. */
#define CRASH_TASK \
    if \
    :: atomic { \
        crashes && !zombie -> crashes--; zombie = true; printf("actor %d is thought dead\n", _pid); \
        if :: MINE -> row[r].todo = row[r].todo | (1 << s) :: else fi \
       } \
    :: zombie -> goto dead \
    :: true \
    fi
#define CRASH_COMMIT \
    if \
    :: atomic { \
        crashes && !zombie -> crashes--; zombie = true; printf("actor %d is thought dead\n", _pid); \
        if :: MINE -> row[r].doing = COMMIT :: else fi \
       } \
    :: zombie -> goto dead \
    :: true \
    fi

proctype Actor() {
    byte r, s, e, c, t, q;
    bool zombie, all_voted;
    byte applied;
end:
    do
    /* ---- begin ---- */
    /* begin._adopt, the lowest first; a claim that nobody ended is ended here, and counts */
    :: atomic {
        ANY_ABANDONED ->
        if
        :: ABANDONED(1) -> r = 1
        :: !ABANDONED(1) && ABANDONED(2) -> r = 2
        :: !ABANDONED(1) && !ABANDONED(2) && ABANDONED(3) -> r = 3
        :: !ABANDONED(1) && !ABANDONED(2) && !ABANDONED(3) && ABANDONED(4) -> r = 4
        :: !ABANDONED(1) && !ABANDONED(2) && !ABANDONED(3) && !ABANDONED(4) && ABANDONED(5) -> r = 5
        fi;
        printf("actor %d: begin finds row %d abandoned under claim %d\n", _pid, r, row[r].claim);
        if :: !row[r].ended -> end_claim(r) :: else fi;
        if :: !row[r].halted -> take(r, false) :: else row[r].alive = false fi;
        q = 0; r = 0; all_voted = false
       }
    /* begin: Kafka is asked without a lock, so what it said may be old when the plan is made */
    :: atomic {
        MAY_ALLOCATE && WAITING_RECORDS
#if LOG
        -> t = stable
#if PLANT == 13 /* the plan begins where the one before it ended when Kafka was asked */
        ; e = until[last]
#endif
#endif
       }
        /* allocate._allocate, under the pipeline's lock */
        atomic {
            if
#if LOG
            :: MAY_ALLOCATE && t > until[last] ->
                last++; from[last] = until[last - 1]; until[last] = t;
#if PLANT == 13
                from[last] = e;
#endif
                tiled()
#else
            :: MAY_ALLOCATE -> last++
#endif
                ; open(last, last, 1);
                printf("actor %d: begin allocates transaction %d\n", _pid, last)
            :: else
            fi;
            t = 0; e = 0; q = 0
        }

    /* ---- process ---- */
    :: atomic {
        if
        :: TASK(1, 0) -> r = 1 :: TASK(2, 0) -> r = 2 :: TASK(3, 0) -> r = 3
        :: TASK(4, 0) -> r = 4 :: TASK(5, 0) -> r = 5
#if S > 1
        :: TASK(1, 1) -> r = 1; s = 1 :: TASK(2, 1) -> r = 2; s = 1 :: TASK(3, 1) -> r = 3; s = 1
        :: TASK(4, 1) -> r = 4; s = 1 :: TASK(5, 1) -> r = 5; s = 1
#endif
        fi;
        row[r].todo = row[r].todo & ~(1 << s);
        /* claims.claim_of: what this run's begin took, not today's */
        e = row[r].epoch; c = row[r].claim
       }
        /* votes.take_try */
        atomic {
            if
            :: row[r].epoch != e || row[r].claim != c -> goto failed
            :: else
            fi;
            if
            :: row[r].state != OPEN || row[r].slice[s].vote -> goto well
            :: else ->
                row[r].slice[s].try++; t = row[r].slice[s].try;
                assert(t <= 7);
                printf("actor %d: row %d, epoch %d, slice %d: try %d by claim %d\n", _pid, r, e, s, t, c)
            fi
        }
        CRASH_TASK;
        /* spark.stager.Copying: one database transaction for each sink, whose last statement asks for the try */
        atomic {
            if
            :: row[r].epoch == e && row[r].state == OPEN && row[r].slice[s].try == t && !row[r].slice[s].vote ->
                row[r].slice[s].staged[0] = row[r].slice[s].staged[0] | (1 << t);
                printf("actor %d: row %d, slice %d: try %d stages for sink 0\n", _pid, r, s, t)
            :: else -> goto failed
            fi
        }
        CRASH_TASK;
        atomic {
            if
            :: row[r].epoch == e && row[r].state == OPEN && row[r].slice[s].try == t && !row[r].slice[s].vote ->
                row[r].slice[s].staged[1] = row[r].slice[s].staged[1] | (1 << t);
                printf("actor %d: row %d, slice %d: try %d stages for sink 1\n", _pid, r, s, t)
            :: else -> goto failed
            fi
        }
        CRASH_TASK;
        /* votes.cast_vote */
        atomic {
            if
#if PLANT == 3 /* a vote is counted whatever its epoch */
            :: row[r].state == OPEN && row[r].slice[s].try == t && !row[r].slice[s].vote ->
#else
            :: row[r].epoch == e && row[r].state == OPEN && row[r].slice[s].try == t && !row[r].slice[s].vote ->
#endif
                row[r].slice[s].vote = t; promote(r); q = 0; all_voted = false;
                printf("actor %d: row %d, slice %d: try %d votes\n", _pid, r, s, t)
            :: row[r].epoch == e && row[r].slice[s].vote == t -> skip /* cast before, by this very try */
            :: else -> goto failed
            fi
        }
        CRASH_TASK;
well:   atomic {
            if
            :: !zombie && MINE && row[r].doing == PROCESS ->
                row[r].done = row[r].done | (1 << s);
                if :: row[r].done == ALL -> row[r].doing = COMMIT; row[r].done = 0 :: else fi
            :: else
            fi;
            goto dead
        }

    /* ---- commit ---- */
    :: atomic {
        if
        :: COMMITS(1) -> r = 1 :: COMMITS(2) -> r = 2 :: COMMITS(3) -> r = 3 :: COMMITS(4) -> r = 4
        :: COMMITS(5) -> r = 5
        fi;
        row[r].doing = 0;
        e = row[r].epoch; c = row[r].claim
       }
        /* step 1 and the row that the gates are asked about, in one: commit._ended */
        atomic {
            if
            :: row[r].state == PREPARED || row[r].state == COMMITTING -> e = row[r].epoch
            :: else -> goto failed
            fi
        }
        CRASH_COMMIT;
        /* step 2, gates.judge: stored for the epoch that was asked about, or not at all */
        atomic {
            if
#if PLANT == 9 /* what the gates said of one epoch is stored for another */
            :: row[r].state == PREPARED && row[r].verdict != row[r].epoch ->
#else
            :: row[r].state == PREPARED && row[r].epoch == e && row[r].verdict != e ->
#endif
                if
                :: row[r].verdict = row[r].epoch; row[r].asked = e;
                    printf("actor %d: row %d: the gates of epoch %d say yes\n", _pid, r, e)
                :: noes ->
                    noes--; row[r].state = ABORTED;
                    printf("actor %d: row %d: the gates of epoch %d say no\n", _pid, r, e);
                    goto failed
                fi
            :: else
            fi
        }
        CRASH_COMMIT;
#ifdef OUTSIDE
        /* The decision: durable before anything is applied, and from here only forward */
        atomic {
            if
            :: row[r].state == COMMITTING -> skip
            :: row[r].state == PREPARED && row[r].verdict == row[r].epoch && r > N ->
                if
                :: sink[0].shown[row[r].txid] > r -> row[r].state = ABORTED; row[r].halted = true; goto failed
                :: else -> row[r].state = COMMITTING
                fi
            :: row[r].state == PREPARED && row[r].verdict == row[r].epoch && r <= N && head + 1 == r ->
#if PLANT == 12 /* the sink outside is written to before the decision is durable */
                apply(1, r); sink[1].mark = r; goto failed
#else
                row[r].state = COMMITTING
#endif
            :: row[r].state == PREPARED && row[r].verdict == row[r].epoch && r <= N && head + 1 != r ->
                if :: !zombie && MINE -> row[r].doing = WAITING :: else fi;
                goto dead
            :: else -> goto failed
            fi;
            /* what the outside sink's mark has to be before this one is applied: the last one committed */
            t = 0;
            for (q : 1 .. N) { if :: q < r && row[q].state == COMMITTED -> t = q :: else fi };
            q = 0
        }
        CRASH_COMMIT;
        /* Sink.apply(txid, revision): one atomic step in the outside sink, which also moves its mark */
        atomic {
            if
#if PLANT == 10 /* the sink outside does not compare its mark in the step that applies */
            :: r <= N -> apply(1, r); sink[1].mark = r
#else
            :: r <= N && sink[1].mark == t -> apply(1, r); sink[1].mark = r
#endif
            :: r <= N && sink[1].mark >= r -> skip
            :: r <= N && sink[1].mark != t && sink[1].mark < r -> goto failed
            :: r > N && sink[1].shown[row[r].txid] < r -> apply(1, r)
            :: r > N && sink[1].shown[row[r].txid] >= r -> skip
            fi;
            q = 0; prefix()
        }
        CRASH_COMMIT;
        /* The ledger's own sinks, the state and the head, last and in one */
        atomic {
            if
            :: row[r].state == COMMITTING ->
                apply(0, r); row[r].state = COMMITTED;
                if :: r <= N -> head++; advance(0) :: else -> prefix() fi
            :: else -> goto failed
            fi
        }
#else
        /* steps 3 to 7, under the pipeline's lock */
        atomic {
#if PLANT != 6 /* commit does not look at the state again under the lock */
            if
            :: row[r].state != PREPARED || row[r].verdict != row[r].epoch -> goto failed
            :: else
            fi;
#endif
            if
            :: r > N ->
                /* commit._commit_revision */
                if
#if PLANT != 8 /* an older revision goes over a newer one */
                :: sink[0].shown[row[r].txid] > r ->
                    row[r].state = ABORTED; row[r].halted = true
#endif
                :: else ->
                    apply(0, r); apply(1, r); row[r].state = COMMITTED; prefix()
                fi
            :: r <= N && head + 1 != r ->
#if PLANT == 7 /* commit does not wait for its turn */
                apply(0, r); apply(1, r); row[r].state = COMMITTED; prefix();
#endif
                if :: !zombie && MINE -> row[r].doing = WAITING :: else fi;
                goto dead
            :: r <= N && head + 1 == r ->
#if PLANT == 6
                apply(0, r); apply(1, r); row[r].state = COMMITTED; head++; prefix()
#else
                advance(r)
#endif
            fi
        }
#endif
        CRASH_COMMIT;
failed: atomic {
            /* settle comes whatever became of the other tasks */
            if :: !zombie && MINE -> row[r].doing = SETTLE; row[r].todo = 0 :: else fi
        }
dead:   atomic { r = 0; s = 0; e = 0; c = 0; t = 0; q = 0; zombie = false; all_voted = false }

    /* ---- settle ---- */
    :: atomic {
        if
        :: SETTLES(1) -> r = 1 :: SETTLES(2) -> r = 2 :: SETTLES(3) -> r = 3 :: SETTLES(4) -> r = 4
        :: SETTLES(5) -> r = 5
        fi;
        printf("actor %d: settle ends claim %d of row %d\n", _pid, row[r].claim, r);
        row[r].alive = false; row[r].doing = 0; row[r].done = 0;
        if :: !row[r].ended -> end_claim(r) :: else fi;
        r = 0
       }
    od
}

/* A revision that is decided for a sink outside is finished before the next one begins. */
#define MAY_REVISE (revised == 0 || row[N + 1].state != COMMITTING)

/* I10: when nothing moves any more, every transaction that is not behind a halt is committed or voided. */
#define OVER(i) (row[i].state == COMMITTED || row[i].state == VOIDED)
#define GONE(i) (OVER(i) || row[i].state == 0 || row[i].halted || SUPERSEDED(i) || (i <= N && i > HALT))
#define ALL_TAKEN (last == N || !WAITING_RECORDS)
#define FINISHED ((HALT < ROWS || (ALL_TAKEN && head == last)) && GONE(1) && GONE(2) && GONE(3) && GONE(4) && GONE(5))

#if PLANT == 11 /* what is decided for a sink outside can still be voided */
#define MAY_VOID(i) (LEFT(i))
#else
#define MAY_VOID(i) (UNFINISHED(i))
#endif

#ifdef LIVE
/* For runs that never rest: on fair scheduling the line ends, whatever circle the actors might run in. */
ltl live { <> (head == N) }
#else
proctype Final() {
end:
    timeout -> assert(FINISHED)
}
#endif

/* What Airflow and people do to it, each so often as is asked for. */
proctype Fate() {
    byte r, q;
    bool all_voted;
    byte applied;
end:
    do
#if LOG
    :: atomic { stable < LOG -> stable++ }
#endif
    /* A run is lost, or deleted; what was started of it may go on. */
    :: atomic {
        if
        :: lost && row[1].alive -> r = 1 :: lost && row[2].alive -> r = 2 :: lost && row[3].alive -> r = 3
        :: lost && row[4].alive -> r = 4 :: lost && row[5].alive -> r = 5
        fi;
        printf("the run that holds row %d is lost\n", r);
        lost--; row[r].alive = false; row[r].doing = 0; row[r].todo = 0; row[r].done = 0; r = 0
       }
    /* moves.void */
    :: atomic {
        if
        :: voids && MAY_VOID(1) -> r = 1 :: voids && MAY_VOID(2) -> r = 2 :: voids && MAY_VOID(3) -> r = 3
        fi;
        assert(r <= N);
        printf("a person voids transaction %d\n", r);
        voids--; row[r].state = VOIDED; row[r].halted = false; row[r].ended = true; advance(0); r = 0; q = 0
       }
    /* moves.abort */
    :: atomic {
        if
        :: noes && (row[1].state == OPEN || row[1].state == PREPARED) -> r = 1
        :: noes && (row[2].state == OPEN || row[2].state == PREPARED) -> r = 2
        :: noes && (row[3].state == OPEN || row[3].state == PREPARED) -> r = 3
        fi;
        printf("a person aborts row %d\n", r);
        noes--; row[r].state = ABORTED; r = 0
       }
    /* begin._resume of a run that is cleared, at work or not */
    :: atomic {
        if
        :: resumes && UNFINISHED(1) -> r = 1 :: resumes && UNFINISHED(2) -> r = 2 :: resumes && UNFINISHED(3) -> r = 3
        fi;
        printf("a person clears the run of row %d\n", r);
        resumes--; take(r, true); r = 0; q = 0; all_voted = false
       }
#if REVISIONS
    /* begin._resume of a run whose transaction is committed (or `ratchet replay` of a voided one): revise.revise */
    :: atomic {
        if
        :: revised < REVISIONS && head >= 1 && MAY_REVISE -> r = 1
        :: revised < REVISIONS && head >= 2 && MAY_REVISE -> r = 2
        :: revised < REVISIONS && head >= 3 && MAY_REVISE -> r = 3
        fi;
        revised++;
        q = row[r].epoch;
        if
        :: revised == 2 && row[N + 1].txid == r ->
            q = row[N + 1].epoch;
#if PLANT != 8
            if :: row[N + 1].state == OPEN || row[N + 1].state == PREPARED -> row[N + 1].state = ABORTED :: else fi
#endif
        :: else
        fi;
        printf("a person clears the run of transaction %d: row %d is its revision\n", r, N + revised);
        open(N + revised, r, q + 1); r = 0; q = 0
       }
#endif
    od
}

init {
    byte i;
    atomic {
        for (i : 1 .. ACTORS) { run Actor() }
        run Fate();
#ifndef LIVE
        run Final()
#endif
    }
}
