/*
 * Deltas that are written once, as a Promela model, for `make model`.
 *
 * A Spark task's attempt, here a writer, inserts its rows into the sink's delta table under the transaction's txid.
 * Nothing copies them afterwards: readers see the rows whose txid is at most the head. So three questions decide
 * whether a reader sees exactly what the votes name: who may add rows and until when, who removes those that no vote
 * names, and who moves the head. Claims, runs and halts are in protocol.pml; here anybody may do whatever work is left.
 *
 * One step is one database transaction. A process that is killed in the midst of one has changed nothing, which is
 * the same as killed before it. A writer's rows, its registration and its check of the token are one database
 * transaction, whose last statements hold transaction and slice FOR SHARE: rows that are not committed are seen by
 * nobody, and none of the moves that the check asks about can come between the check and its COMMIT. Where the code
 * reads without a lock and acts later, there are two steps.
 *
 * Each original row[1] to row[N] is the transaction of that txid; the rows behind them are revisions. A set of writers
 * is a set of bits, by their numbers; a writer's number is never given again.
 */
#ifndef N
#define N 2            /* transactions, at most 3 */
#endif
#ifndef S
#define S 1            /* slices of each, at most 2; a slice is one Spark task */
#endif
#ifndef SINKS
#define SINKS 1        /* delta tables; the last one is folded into a keyed state besides */
#endif
#ifndef REVISIONS
#define REVISIONS 0
#endif
#ifndef ACTORS
#define ACTORS 2
#endif
#ifndef CRASHES
#define CRASHES 0      /* processes that die, or are thought dead and go on */
#endif
#ifndef SECONDS
#define SECONDS 0      /* second attempts of a Spark task beside the first, which end at any time */
#endif
#ifndef DOUBTFUL
#define DOUBTFUL 0     /* with 1, a driver may say that it has accepted both attempts of a task */
#endif
#ifndef DRIVERS
#define DRIVERS 0      /* drivers that a cluster starts again with the same try */
#endif
#ifndef SPANS
#define SPANS 1        /* with 0, writers' spans say nothing of rows that came twice: keyed rows that were shuffled */
#endif
#ifndef NOES
#define NOES 0         /* gates that say no, epochs that a person aborts */
#endif
#ifndef GATES_FIRST
#define GATES_FIRST 0  /* with 1, gates are asked before leftovers are removed, and name writers in place of a txid */
#endif
#ifndef STRICT
#define STRICT 1       /* with 0, what a vote or a gate meets that it should not is told by readers only */
#endif
#ifndef MISFITS
#define MISFITS 0      /* transactions whose rows a fold does not take */
#endif
#ifndef VOIDS
#define VOIDS 0
#endif
#ifndef MERGES
#define MERGES 0       /* transactions whose rows maintenance merges to one a key */
#endif
#ifndef COMPACTIONS
#define COMPACTIONS 0
#endif
#ifndef IN_FLIGHT
#define IN_FLIGHT 3
#endif
#ifndef PLANT
#define PLANT 0        /* a wrong version, which the check has to find */
#endif
#define ROWS 6         /* N + REVISIONS is at most 5 */
#define K SINKS
#define BIT(w) (1 << (w))
#define ONE(set) ((set) != 0 && ((set) & ((set) - 1)) == 0)

mtype = { OPEN, PREPARED, COMMITTED, ABORTED, VOIDED };

typedef Row {
    mtype state;
    byte txid;
    byte epoch;
    bool verdict;      /* this epoch has passed its gates */
    bool given_up;     /* a revision that was refused or superseded */
    byte committer;    /* 0: nobody is at its commit, 1: a task is, 2: the task is deferred */
    byte busy;         /* a bit for each slice that a job is at work on */
    byte try[S];
    byte named[S];     /* the writers that the slice's vote names; 0: not voted */
    byte writers;      /* numbers that are given */
    byte old;          /* writers of epochs that are over */
    byte of_second;    /* writers of slice 1; the others are of slice 0 */
    byte of_other;     /* writers whose try's random number is that of a driver started again */
    byte reg[K];       /* registered writers, by sink */
    byte rows[K];      /* writers whose rows stand in the delta table under this row's txid */
    byte stage[K];     /* of a revision: writers whose rows stand in its stage */
    byte merged[K];    /* writers whose rows were merged to one a key */
    byte based[K]      /* writers whose rows are part of the base, of many transactions together */
}
Row row[ROWS];

byte head, last;
byte mark;             /* how far deltas are compacted: nothing up to here can be revised */
byte revised;
byte applied[N + 1];   /* by txid: the row whose votes are applied */
byte folded[N + 1];    /* by txid: the writers whose rows the keyed state holds; the order is that of the heads */
bool rows_lock;        /* held by who replaces rows below the head */
byte upto;             /* by who holds it: up to which head a revision has folded its keys */
byte early[N + 1];     /* and to what, by txid */

/* A second attempt of a Spark task: the token it has, its number, how many sinks it has written. */
typedef Attempt { byte r; byte s; byte e; byte t; bool other; byte w; byte done; bool checked }
Attempt second;

byte crashes = CRASHES, seconds = SECONDS, drivers = DRIVERS, noes = NOES, misfits = MISFITS, voids = VOIDS;
byte merges = MERGES, compactions = COMPACTIONS;

hidden byte h, q, k, x, y;

#if S > 1
#define NAMED(i) (row[i].named[0] | row[i].named[1])
#define ALL_NAMED(i) (row[i].named[0] && row[i].named[1])
#else
#define NAMED(i) row[i].named[0]
#define ALL_NAMED(i) row[i].named[0]
#endif

/* Whose rows may stay: nobody's of a voided transaction. */
#define KEPT(i) (row[i].state == VOIDED -> 0 : NAMED(i))

/* Leftovers, which the ledger knows by registrations and votes, without a look at rows */
#define LEFT_IN(i, sink) (row[i].reg[sink] & ~KEPT(i))
#if SINKS > 1
#define LEFT(i) (LEFT_IN(i, 0) || LEFT_IN(i, 1))
#else
#define LEFT(i) (LEFT_IN(i, 0) != 0)
#endif

#if PLANT == 20 /* readers do not compare a row's txid with the head */
#define SEEN(t) true
#else
#define SEEN(t) (t <= head)
#endif

/*
 * What one snapshot shows, asked after every step that changes it.
 * I4, I5, I7: of each transaction up to the head, in each sink, exactly the rows of the writers that the applied votes
 * name, one writer a slice, none of an epoch that is over and nothing twice; of a void and above the head, nothing.
 * I3: the keyed state holds just that of each of them.
 */
inline see() {
    d_step {
        for (h : 1 .. N + REVISIONS) {
            q = row[h].txid;
            for (k : 0 .. K - 1) {
                x = row[h].rows[k] | row[h].merged[k] | row[h].based[k];
                if
                :: q != 0 && q <= head && applied[q] == h ->
                    assert(x == NAMED(h));
                    assert((row[h].rows[k] & row[h].merged[k]) == 0 && (row[h].rows[k] & row[h].based[k]) == 0);
                    assert((row[h].merged[k] & row[h].based[k]) == 0);
                    assert((x & row[h].old) == 0);
                    assert(ONE(x & ~row[h].of_second));
#if S > 1
                    assert(ONE(x & row[h].of_second))
#endif
                :: q != 0 && SEEN(q) && applied[q] != h -> assert(x == 0)
                :: else
                fi
            }
        }
        for (q : 1 .. N) {
            if
            :: q <= head && applied[q] != 0 ->
                assert(row[q].state == COMMITTED);
                assert(folded[q] == NAMED(applied[q]))
            :: else -> assert(folded[q] == 0)
            fi;
            assert(q > head || applied[q] != 0 || row[q].state == VOIDED)
        }
        h = 0; q = 0; k = 0; x = 0
    }
}

/* The deltas of a transaction, whatever has become of their rows */
inline sum_up(txn, all) {
    for (h : 1 .. N + REVISIONS) {
        if
        :: row[h].txid == txn -> all = all | row[h].rows[K - 1] | row[h].merged[K - 1] | row[h].based[K - 1]
        :: else
        fi
    }
    h = 0
}

inline open(i, txn) { row[i].state = OPEN; row[i].txid = txn; row[i].epoch = 1 }

/* A begin that resumes or adopts what was aborted: the next epoch. Its rows are of new writers; the old ones stay. */
inline reopen(i) {
    row[i].state = OPEN; row[i].epoch++; row[i].verdict = false; row[i].committer = 0; row[i].busy = 0;
    row[i].old = BIT(row[i].writers + 1) - 1;
    for (q : 0 .. S - 1) {
        row[i].try[q] = 0;
#if PLANT != 38 /* a new epoch keeps the votes of the one before */
        row[i].named[q] = 0
#endif
    }
    q = 0;
    if :: ALL_NAMED(i) -> row[i].state = PREPARED :: else fi
}

/* One database transaction of a writer, for one sink: rows, registration, and the check under FOR SHARE at its end */
inline write(i, part, in_epoch, by_try, restarted, sink, number, good) {
    if
#if PLANT == 27 /* a writer does not check its token */
    :: true ->
#else
    :: (PLANT == 40 && _pid == ACTORS + 1 && second.checked) || row[i].state == OPEN && row[i].epoch == in_epoch && row[i].try[part] == by_try && row[i].named[part] == 0 ->
#endif
        if
        :: number == 0 ->
            row[i].writers++; number = row[i].writers; assert(number <= 7);
            if :: part == 1 -> row[i].of_second = row[i].of_second | BIT(number) :: else fi;
            if :: restarted -> row[i].of_other = row[i].of_other | BIT(number) :: else fi
        :: else
        fi;
        row[i].reg[sink] = row[i].reg[sink] | BIT(number);
        if
#if PLANT != 23 /* a revision's rows are written into the delta table under their txid */
        :: i > N -> row[i].stage[sink] = row[i].stage[sink] | BIT(number)
#endif
        :: else -> row[i].rows[sink] = row[i].rows[sink] | BIT(number)
        fi;
        printf("actor %d: row %d, epoch %d, slice %d, try %d: writer %d has written to sink %d\n",
            _pid, i, in_epoch, part, by_try, number, sink);
        good = true;
        see()
    :: else -> good = false
    fi
}

/* Leftovers are found in one step and removed in another; what is removed are these very writers. */
inline find_left(i) {
    d_step {
        for (k : 0 .. K - 1) {
            if
            :: row[i].state == PREPARED || row[i].state == VOIDED ->
#if PLANT == 30 /* all but the writers that are named is removed, whatever has come since */
                gone[k] = 254 & ~KEPT(i)
#else
                gone[k] = LEFT_IN(i, k)
#endif
            :: else -> gone[k] = 0
            fi
        }
        k = 0
    }
}

inline remove(i) {
    d_step {
        for (k : 0 .. K - 1) {
#if PLANT == 30
            for (h : 1 .. N + REVISIONS) {
                if :: row[h].txid == row[i].txid -> row[h].rows[k] = row[h].rows[k] & ~gone[k] :: else fi
            }
            h = 0;
#endif
#if PLANT != 34 /* a registration is removed in a database transaction before that of its rows */
            row[i].rows[k] = row[i].rows[k] & ~gone[k];
            row[i].stage[k] = row[i].stage[k] & ~gone[k];
#endif
            row[i].reg[k] = row[i].reg[k] & ~gone[k]
        }
        k = 0;
        printf("actor %d: leftovers of row %d are removed\n", _pid, i)
    }
    see()
}
#if PLANT == 34
inline remove_rows(i) {
    d_step {
        for (k : 0 .. K - 1) { row[i].rows[k] = row[i].rows[k] & ~gone[k]; row[i].stage[k] = row[i].stage[k] & ~gone[k] }
        k = 0
    }
    see()
}
#endif

#if SINKS > 1
#define GONE (gone[0] || gone[1])
#define FORGET gone[0] = 0; gone[1] = 0
#else
#define GONE (gone[0] != 0)
#define FORGET gone[0] = 0
#endif

#if PLANT == 22 /* the head passes over a void whose rows are still there */
#define LEFT_OF_VOID(i) false
#else
#define LEFT_OF_VOID(i) LEFT(i)
#endif
#if PLANT == 26 /* leftovers are looked for before the lock and not under it */
#define LEFT_OF_MEMBER(i) false
#elif PLANT == 21
#define LEFT_OF_MEMBER(i) false
#else
#define LEFT_OF_MEMBER(i) LEFT(i)
#endif

/*
 * Under the pipeline's lock: fold and move the head over what is prepared and has passed its gates, and over voids.
 * A member with leftovers ends the group and is told by `met`; one that does not fit is undone and ends it too, and is
 * aborted only by its own commit (`by`).
 */
inline advance(by, met) {
    met = 0;
    do
    :: head == last -> break
    :: head < last && row[head + 1].state == VOIDED ->
        if
        :: LEFT_OF_VOID(head + 1) -> met = head + 1; break
        :: else -> head++; printf("actor %d: the head moves over the void %d\n", _pid, head)
        fi
    :: head < last && row[head + 1].state == PREPARED && row[head + 1].verdict ->
        if
        :: LEFT_OF_MEMBER(head + 1) -> met = head + 1; break
        :: !LEFT_OF_MEMBER(head + 1) && misfits -> misfits--;
            if :: head + 1 == by -> row[by].state = ABORTED :: else fi;
            break
        :: !LEFT_OF_MEMBER(head + 1) ->
            row[head + 1].state = COMMITTED; row[head + 1].committer = 0;
            assert(applied[head + 1] == 0);
            /* the fold names the txid, and no writers: what else stands under it would be folded too */
            applied[head + 1] = head + 1;
#if PLANT == 21
            folded[head + 1] = NAMED(head + 1);
#else
            folded[head + 1] = row[head + 1].rows[K - 1];
#endif
            printf("actor %d: transaction %d is committed\n", _pid, head + 1);
#if PLANT == 28 /* the head is moved in a database transaction after that of the fold */
            see();
#endif
            head++
        fi
    :: else -> break
    od;
    see()
}

/* A process may die here, or be thought dead: then others do its work, and it goes on at any time, or never. */
#define CRASH(release) \
    if \
    :: atomic { \
        crashes && !zombie -> crashes--; zombie = true; printf("actor %d is thought dead\n", _pid); release \
       } \
    :: zombie -> goto dead \
    :: true \
    fi
#define LOSE_JOB if :: row[r].epoch == e && row[r].try[s] == t -> row[r].busy = row[r].busy & ~BIT(s) :: else fi
#define LOSE_COMMIT if :: r && row[r].epoch == e && row[r].committer == 1 -> row[r].committer = 0 :: else fi

#define TASK(i, sl) (row[i].state == OPEN && !(row[i].busy & BIT(sl)) && row[i].named[sl] == 0)
#define AGAIN(i, sl) (row[i].state == OPEN && (row[i].busy & BIT(sl)) && row[i].named[sl] == 0)
/* A deferred commit wakes in its turn. */
#define COMMITS(i) (row[i].state == PREPARED && (row[i].committer == 0 || (row[i].committer == 2 && head + 1 == i)))
#define RETRIES(i) (row[i].state == ABORTED && !row[i].given_up)
#define MAY_VOID(i) (i <= N && (row[i].state == OPEN || row[i].state == PREPARED || row[i].state == ABORTED))
#define SECOND_IS_MINE (second.r == r && second.s == s && second.e == e && second.t == t && second.other == other)

proctype Actor() {
    byte r, s, e, t, w, m;
    byte gone[K];
    bool zombie, other, ok, again;
#if GATES_FIRST
    bool judged;
#endif
end:
    do
    /* ---- begin ---- */
    :: atomic {
        last < N && last - head < IN_FLIGHT -> last++; open(last, last);
        printf("actor %d: begin allocates transaction %d\n", _pid, last)
       }
    :: atomic {
        if
        :: RETRIES(1) -> r = 1 :: RETRIES(2) -> r = 2 :: RETRIES(3) -> r = 3 :: RETRIES(4) -> r = 4 :: RETRIES(5) -> r = 5
        fi;
        reopen(r); printf("actor %d: row %d begins epoch %d\n", _pid, r, row[r].epoch); r = 0
       }

    /* ---- process: a try, and its Spark job ---- */
    :: atomic {
        if
        :: TASK(1, 0) -> r = 1 :: TASK(2, 0) -> r = 2 :: TASK(3, 0) -> r = 3 :: TASK(4, 0) -> r = 4 :: TASK(5, 0) -> r = 5
#if S > 1
        :: TASK(1, 1) -> r = 1; s = 1 :: TASK(2, 1) -> r = 2; s = 1 :: TASK(3, 1) -> r = 3; s = 1
        :: TASK(4, 1) -> r = 4; s = 1 :: TASK(5, 1) -> r = 5; s = 1
#endif
        :: drivers && AGAIN(1, 0) -> r = 1; other = true
        :: drivers && AGAIN(2, 0) -> r = 2; other = true
        fi;
        e = row[r].epoch;
        if
        :: other ->
            /* the task that waits for it does not know of it, so nobody waits when it ends */
            drivers--; zombie = true; t = row[r].try[s]
        :: else -> row[r].try[s]++; t = row[r].try[s]; row[r].busy = row[r].busy | BIT(s)
        fi;
        printf("actor %d: row %d, epoch %d, slice %d: try %d, driver %d\n", _pid, r, e, s, t, other);
        if
        :: seconds && second.r == 0 ->
            seconds--; second.r = r; second.s = s; second.e = e; second.t = t; second.other = other
        :: true
        fi
       }
        CRASH(LOSE_JOB);
        atomic {
            if
            :: SECOND_IS_MINE && second.done == K -> w = second.w /* the first attempt has failed */
            :: true -> write(r, s, e, t, other, 0, w, ok); if :: ok :: else -> goto over fi
            fi
        }
        CRASH(LOSE_JOB);
#if SINKS > 1
        atomic {
            if
            :: SECOND_IS_MINE && second.done == K -> w = second.w
            :: true -> write(r, s, e, t, other, 1, w, ok); if :: ok :: else -> goto over fi
            fi
        }
        CRASH(LOSE_JOB);
#endif
        /* the vote names the attempts that the driver has accepted; the last one prepares the transaction */
        atomic {
            if
            :: row[r].state == OPEN && row[r].epoch == e && row[r].try[s] == t && row[r].named[s] == 0 ->
                y = BIT(w);
                if
                :: SECOND_IS_MINE && second.done == K && second.w != w -> y = BIT(second.w)
                :: DOUBTFUL && SECOND_IS_MINE && second.done == K && second.w != w -> y = y | BIT(second.w)
                :: true
                fi;
#if PLANT == 25 /* writers are named by task and attempt, and the random number of the try is not compared */
                y = row[r].reg[0] & row[r].reg[K - 1] & ~row[r].old & (s == 1 -> row[r].of_second : ~row[r].of_second);
#endif
                x = y;
                for (k : 0 .. K - 1) { x = x & row[r].reg[k] }
                k = 0;
                assert(!STRICT || x == y);
                if
                /* what is named has to be there */
                :: x != y -> row[r].state = ABORTED
#if PLANT != 24 /* a vote is not compared with the slice's ranges */
                :: x == y && SPANS && !ONE(y) -> row[r].state = ABORTED; printf("actor %d: row %d: rows came twice\n", _pid, r)
#endif
#if PLANT != 25
                :: x == y && !(SPANS && !ONE(y)) && (y & row[r].of_other) != (other -> y : 0) -> row[r].state = ABORTED
#endif
                :: else ->
                    row[r].named[s] = y;
                    printf("actor %d: row %d, slice %d: try %d votes\n", _pid, r, s, t);
                    if :: ALL_NAMED(r) -> row[r].state = PREPARED :: else fi
                fi;
                x = 0; y = 0
            :: else
            fi
        }
over:   atomic { if :: !zombie -> LOSE_JOB :: else fi; goto dead }

    /* ---- commit ---- */
    :: atomic {
        if
        :: COMMITS(1) -> r = 1 :: COMMITS(2) -> r = 2 :: COMMITS(3) -> r = 3 :: COMMITS(4) -> r = 4 :: COMMITS(5) -> r = 5
        fi;
        row[r].committer = 1; e = row[r].epoch; m = r
       }
        CRASH(LOSE_COMMIT);
#if GATES_FIRST
        goto judge;
#endif
clean:  atomic {
#if PLANT != 21 /* nobody removes what no vote names, and only what is named is folded */
            find_left(m);
#endif
            if :: !GONE -> goto judge :: else fi
        }
        CRASH(LOSE_COMMIT);
        atomic { remove(m) }
        CRASH(LOSE_COMMIT);
#if PLANT == 34
        atomic { remove_rows(m) }
        CRASH(LOSE_COMMIT);
#endif
judge:  atomic {
            FORGET;
#if GATES_FIRST
            if :: r && !judged -> m = r :: else -> m = 0 fi;
#else
            m = 0;
#endif
            if
            :: r && !again && row[r].state == PREPARED && row[r].epoch == e && !row[r].verdict ->
#if PLANT == 35 /* gates that are asked before leftovers are removed name the txid, and no writers */
#define JUDGED row[r].rows[K - 1]
#elif GATES_FIRST
#define JUDGED (row[r].rows[K - 1] & NAMED(r))
#else
#define JUDGED row[r].rows[K - 1]
#endif
                /* what a gate judges is what will be visible */
                assert(!STRICT || r > N || JUDGED == NAMED(r));
                if
                :: row[r].verdict = true
                :: noes -> noes--; row[r].state = ABORTED; printf("actor %d: row %d: the gates say no\n", _pid, r)
                fi
            :: else
            fi
        }
        CRASH(LOSE_COMMIT);
#if GATES_FIRST
        atomic { if :: m -> judged = true; goto clean :: else fi };
#endif
        if :: r > N -> goto revise :: else fi;
        atomic {
            if
            :: r && !again && (row[r].state != PREPARED || !row[r].verdict) -> goto end_commit
            :: else -> advance(r, m)
            fi;
            again = (m != 0);
            if :: m == 0 -> goto end_commit :: else fi;
            printf("actor %d: row %d has leftovers, the group ends\n", _pid, m)
        }
        CRASH(LOSE_COMMIT);
        goto clean;

        /*
         * One database transaction, in two steps, since others commit while it reads: the keys are folded up to the head
         * under the lock on rows, then comes the check under the line's, and what was committed since is added. The
         * exchange of rows is seen by nobody before the end, and stands in the second step.
         */
revise: atomic {
            if
#if PLANT != 31 /* rows are merged without the lock that a revision holds */
            :: !rows_lock ->
#else
            :: true ->
#endif
                rows_lock = true;
                d_step {
                    q = row[r].txid; m = applied[q];
                    for (k : 0 .. K - 1) { gone[k] = (m -> row[m].rows[k] : 0) }
                    /* whether what it replaces was merged before */
                    again = (m != 0 && row[m].merged[0] != 0);
                    upto = head;
                    for (q : 1 .. N) {
                        early[q] = 0;
                        if
                        :: q == row[r].txid -> early[q] = row[r].stage[K - 1] & NAMED(r)
#if PLANT == 37 /* keys are folded anew from deltas above the head too */
                        :: q != row[r].txid -> sum_up(q, early[q])
#else
                        :: q != row[r].txid && q <= upto -> sum_up(q, early[q])
#endif
                        :: else
                        fi
                    }
                    q = 0; k = 0
                }
            fi
        }
        atomic {
            if
            :: row[r].state != PREPARED || row[r].epoch != e || !row[r].verdict
            :: row[r].state == PREPARED && row[r].epoch == e && row[r].verdict ->
                if
#if PLANT != 36 /* an older revision goes over a newer one */
                :: applied[row[r].txid] > r -> row[r].state = ABORTED; row[r].given_up = true
#endif
#if PLANT != 32 /* a revision does not look how far deltas are compacted */
                :: row[r].txid <= mark && applied[row[r].txid] <= r -> row[r].state = ABORTED; row[r].given_up = true
#endif
                :: else ->
                    /* an applied revision never goes back to an older one */
                    assert(applied[row[r].txid] < r);
                    d_step {
                        for (k : 0 .. K - 1) {
                            if
                            :: m ->
                                row[m].rows[k] = row[m].rows[k] & ~gone[k]; row[m].reg[k] = row[m].reg[k] & ~gone[k];
                                if :: again -> row[m].merged[k] = 0 :: else fi
                            :: else
                            fi;
                            row[r].rows[k] = row[r].rows[k] | (row[r].stage[k] & NAMED(r));
                            row[r].stage[k] = row[r].stage[k] & ~NAMED(r)
                        }
                        row[r].state = COMMITTED; row[row[r].txid].state = COMMITTED; applied[row[r].txid] = r;
                        for (q : 1 .. N) {
                            folded[q] = early[q];
#if PLANT != 42 /* a revision misses what was committed after it had folded its keys */
                            if :: q > upto && q <= head -> sum_up(q, folded[q]) :: else fi
#endif
                        }
                        k = 0; q = 0
                    }
                    printf("actor %d: row %d is committed, in place of row %d of transaction %d\n", _pid, r, m, row[r].txid);
                    see()
                fi
            fi;
            d_step {
                rows_lock = false; upto = 0;
                for (q : 1 .. N) { early[q] = 0 }
                q = 0
            }
        }
end_commit:
        atomic {
            if
            :: r && !zombie && row[r].epoch == e && row[r].committer == 1 ->
                row[r].committer = (row[r].state == PREPARED && r <= N -> 2 : 0)
            :: else
            fi;
            goto dead
        }

    /* ---- a person voids ---- */
    :: atomic {
        if
        :: voids && MAY_VOID(1) -> r = 1 :: voids && MAY_VOID(2) -> r = 2 :: voids && MAY_VOID(3) -> r = 3
        fi;
        printf("a person, actor %d, voids transaction %d\n", _pid, r);
        voids--; row[r].state = VOIDED; row[r].committer = 0; r = 0;
        advance(0, m);
        if :: m -> again = true :: else -> goto dead fi
       }
        CRASH(skip);
        goto clean;

dead:   atomic { r = 0; s = 0; e = 0; t = 0; w = 0; m = 0; zombie = false; other = false; ok = false; again = false; FORGET;
#if GATES_FIRST
            judged = false
#endif
        }
    od
}

/* A Spark worker with a second attempt: its database transactions end at any time, also after the vote. */
proctype Worker() {
    bool ok;
end:
    do
#if PLANT == 40 /* a writer checks its token and does not hold what it checked until its COMMIT */
    :: atomic {
        second.r && !second.checked ->
        second.checked = (row[second.r].state == OPEN && row[second.r].epoch == second.e && row[second.r].try[second.s] == second.t
            && row[second.r].named[second.s] == 0)
       }
#endif
    :: atomic {
        second.r && second.done < K ->
        write(second.r, second.s, second.e, second.t, second.other, second.done, second.w, ok);
        if
        :: ok -> second.done++
        :: else -> second.r = 0; second.s = 0; second.e = 0; second.t = 0; second.other = false; second.w = 0; second.done = 0;
            second.checked = false
        fi;
        ok = false
       }
    od
}

/* What maintenance calls over: by epoch above the head, by what no applied vote names below it. */
#if PLANT == 29 /* maintenance takes a prepared epoch for one that is over */
#define TAKEN_FOR_OVER(i) (row[i].state == PREPARED)
#elif PLANT == 41 /* maintenance takes an unfinished revision's writers for leftovers below the head */
#define TAKEN_FOR_OVER(i) (i > N && row[i].state == PREPARED)
#else
#define TAKEN_FOR_OVER(i) false
#endif
#define OVER(i, sink) (row[i].reg[sink] & ( \
    row[i].state == ABORTED || row[i].state == VOIDED || TAKEN_FOR_OVER(i) || \
    (row[i].state == COMMITTED && applied[row[i].txid] != i) -> 255 \
    : (row[i].state == COMMITTED -> ~NAMED(i) : row[i].old)))
#if SINKS > 1
#define UNTIDY(i) (OVER(i, 0) || OVER(i, 1))
#else
#define UNTIDY(i) (OVER(i, 0) != 0)
#endif
#define MERGEABLE(t) (t <= N && t <= head && applied[t] && row[applied[t]].rows[0])

proctype Maintenance() {
    byte m, unused;
    byte gone[K];
end:
    do
    :: atomic {
        if
        :: UNTIDY(1) -> m = 1 :: UNTIDY(2) -> m = 2 :: UNTIDY(3) -> m = 3 :: UNTIDY(4) -> m = 4 :: UNTIDY(5) -> m = 5
        fi;
        d_step { for (k : 0 .. K - 1) { gone[k] = OVER(m, k) } k = 0 }
       }
        atomic {
            d_step {
                for (k : 0 .. K - 1) {
#if PLANT == 39 /* maintenance removes by txid what was over when it looked */
                    row[m].rows[k] = 0; row[m].stage[k] = 0; row[m].reg[k] = 0;
#endif
                    row[m].rows[k] = row[m].rows[k] & ~gone[k]; row[m].stage[k] = row[m].stage[k] & ~gone[k];
                    row[m].reg[k] = row[m].reg[k] & ~gone[k]
                }
                k = 0;
                printf("maintenance, actor %d, removes rows of row %d\n", _pid, m)
            }
            see(); m = 0; FORGET
        }
#if PLANT != 33 /* the head moves over a void only by who voids or commits */
    :: atomic { head < last && row[head + 1].state == VOIDED && !LEFT(head + 1) -> advance(0, unused); unused = 0 }
#endif
#if MERGES
    :: atomic {
        if
        :: merges && !rows_lock && MERGEABLE(1) -> m = applied[1] :: merges && !rows_lock && MERGEABLE(2) -> m = applied[2]
        fi;
        merges--;
#if PLANT != 31
        rows_lock = true;
#endif
        d_step { for (k : 0 .. K - 1) { gone[k] = row[m].rows[k] } k = 0 }
       }
        atomic {
            d_step {
                for (k : 0 .. K - 1) {
                    /* a row that another database transaction has deleted meanwhile is not deleted, and not merged */
                    row[m].merged[k] = row[m].merged[k] | (row[m].rows[k] & gone[k]);
                    row[m].rows[k] = row[m].rows[k] & ~gone[k]; row[m].reg[k] = row[m].reg[k] & ~gone[k]
                }
                k = 0;
#if PLANT != 31
                rows_lock = false;
#endif
                printf("maintenance, actor %d, merges rows of row %d\n", _pid, m)
            }
            see(); m = 0; FORGET
        }
#endif
#if COMPACTIONS
    /* under the pipeline's lock it is noted how far, the merging follows without it */
    :: atomic { compactions && head > mark -> compactions--; mark = head }
        atomic {
            !rows_lock ->
            d_step {
                for (q : 1 .. N) {
                    if
                    :: q <= mark && applied[q] ->
                        m = applied[q];
                        for (k : 0 .. K - 1) {
                            row[m].based[k] = row[m].based[k] | row[m].rows[k] | row[m].merged[k];
                            row[m].reg[k] = row[m].reg[k] & ~row[m].rows[k]; row[m].rows[k] = 0; row[m].merged[k] = 0
                        }
                    :: else
                    fi
                }
                q = 0; k = 0; m = 0;
                printf("maintenance, actor %d, compacts up to transaction %d\n", _pid, mark)
            }
            see()
        }
#endif
    od
}

/* What people do besides, each so often as is asked for. */
proctype Fate() {
    byte r;
end:
    do
    :: atomic {
        if
        :: noes && (row[1].state == OPEN || row[1].state == PREPARED) -> r = 1
        :: noes && (row[2].state == OPEN || row[2].state == PREPARED) -> r = 2
        :: noes && (row[3].state == OPEN || row[3].state == PREPARED) -> r = 3
        fi;
        printf("a person aborts row %d\n", r);
        noes--; row[r].state = ABORTED; r = 0
       }
#if REVISIONS
    :: atomic {
        if
        :: revised < REVISIONS && head >= 1 -> r = 1
        :: revised < REVISIONS && head >= 2 -> r = 2
        fi;
        revised++;
        if
        :: revised == 2 && row[N + 1].txid == r && row[N + 1].state != COMMITTED ->
            row[N + 1].given_up = true;
#if PLANT != 36
            row[N + 1].state = ABORTED
#endif
        :: else
        fi;
        printf("a person clears transaction %d: row %d is its revision\n", r, N + revised);
        open(N + revised, r); r = 0
       }
#endif
    od
}

/* I10: when nothing moves any more, all is committed or voided, and of finished epochs nothing is left. */
#define SETTLED(i) (row[i].state == 0 || row[i].state == COMMITTED || row[i].state == VOIDED || row[i].given_up)
#define TIDY_IN(i, sink) (row[i].stage[sink] == 0 && \
    ((row[i].rows[sink] | row[i].reg[sink]) & ~(applied[row[i].txid] == i -> NAMED(i) : 0)) == 0)
#if SINKS > 1
#define TIDY(i) (TIDY_IN(i, 0) && TIDY_IN(i, 1))
#else
#define TIDY(i) TIDY_IN(i, 0)
#endif
proctype Final() {
end:
    timeout -> atomic {
        assert(head == last && last == N && SETTLED(1) && SETTLED(2) && SETTLED(3) && SETTLED(4) && SETTLED(5));
        assert(TIDY(1) && TIDY(2) && TIDY(3) && TIDY(4) && TIDY(5))
    }
}

init {
    byte i;
    atomic {
        for (i : 1 .. ACTORS) { run Actor() }
#if SECONDS
        run Worker();
#endif
        run Maintenance();
        run Fate();
        run Final()
    }
}
