/*
 * Destinations, as a Promela model, for `make model`: places outside the ledger's database that get a sink's rows.
 *
 * What the other two models prove of claims, epochs, writers and gates is taken for granted here: a row comes to be
 * PREPARED, and whoever commits is any actor at any time. An actor may stop between any two of its database
 * transactions and another one does the same work, so each is a zombie to the others.
 *
 * The ledger decides and shows a transaction, or a revision, in one database transaction, which also records a step of
 * it: a dense number and a random token. The follower takes a destination from the step of its mark to the next one, in
 * one transaction of the destination, which compares the mark and is one `atomic` here. Nobody else writes there.
 *
 * Content is told apart by the token of the step that decided it: of a ledger that was restored, and took other ways,
 * no token comes twice.
 */
#ifndef N
#define N 3            /* transactions, at most 3 */
#endif
#ifndef REVISIONS
#define REVISIONS 0    /* at most 2 */
#endif
#ifndef DESTINATIONS
#define DESTINATIONS 1 /* at most 2 */
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
#define MISFITS 0      /* rows that the ledger's own tables do not take */
#endif
#ifndef GONE
#define GONE 0         /* destinations that are lost for good */
#endif
#ifndef FOREIGN
#define FOREIGN 0      /* marks that somebody else moves */
#endif
#ifndef BACKS
#define BACKS 0        /* a backup of the destination's own comes in its place */
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
#define ROWS 6
#define STEPS (N + REVISIONS)
#define BIT(i) (1 << (i))

mtype:state = { NONE, OPEN, PREPARED, COMMITTED, ABORTED, VOIDED };

/* The ledger: what one database transaction changes at once. */
typedef Ledger {
    mtype:state state[ROWS];   /* of the transactions, then of the revisions */
    byte revises[2];           /* the transaction of each revision */
    byte revised;
    byte head;
    byte step;                 /* the last */
    byte before;               /* the last when the last group or revision was decided */
    byte token[STEPS + 1];     /* of each step; that of 0 is where destinations start */
    byte changes[STEPS + 1];   /* the transaction of each step */
    byte shown[N + 1];         /* what is shown of each transaction, by the token of its step */
    bool attached[2];
    byte reached[2]            /* of each destination, a step that it has for certain */
}
Ledger ledger;

typedef Destination {
    byte mark;
    byte token;
    byte shown[N + 1];
    bool gone
}
Destination dest[2];

#if RESTORES
Ledger backup;
bool saved;

inline copied(to, it) {
    for (q : 0 .. ROWS - 1) { to.state[q] = it.state[q] }
    for (q : 0 .. N) { to.shown[q] = it.shown[q] }
    for (q : 0 .. STEPS) { to.token[q] = it.token[q]; to.changes[q] = it.changes[q] }
    for (q : 0 .. 1) {
        to.revises[q] = it.revises[q]; to.attached[q] = it.attached[q]; to.reached[q] = it.reached[q]
    }
    q = 0;
    to.revised = it.revised; to.head = it.head; to.step = it.step; to.before = it.before
}
#endif
#if BACKS
Destination older;
bool kept;
#endif

byte tokens = 1;        /* the last token that was drawn */
byte stops = STOPS, aborts = ABORTS, voids = VOIDS, misfits = MISFITS;
byte lost = GONE, foreign = FOREIGN, detaches = DETACHES, attaches = ATTACHES, restores = RESTORES, backs = BACKS;
bool restored, moved, back;
byte past[2];           /* decisions that a destination that halts the line has not held */

#define STATE(i) ledger.state[i]
#define UNDECIDED(i) (STATE(i) == OPEN || STATE(i) == PREPARED || STATE(i) == ABORTED)
#define TXID(i) ((i) <= N -> (i) : ledger.revises[(i) - N - 1])
#define IS_STEP(number, itsToken) ((number) <= ledger.step && ledger.token[number] == (itsToken))
#define KNOWN(k) IS_STEP(dest[k].mark, dest[k].token)
/* A destination that is lost, that has another's mark, or that has gone back: the line halts until it is detached. */
#define HALTS(k) (ledger.attached[k] && (dest[k].gone || (!KNOWN(k) && (restored || (moved && k == 0))) \
    || (back && k == 0 && dest[k].mark < ledger.reached[k])))

/*
 * The ledger's readers see a prefix of the line, by its last steps. An attached destination shows what the ledger
 * showed at the step of its mark, and it lacks nothing that was decided before the last decision.
 */
inline readers() {
    d_step {
        for (q : 1 .. N) {
            assert(ledger.shown[q] == 0 || (q <= ledger.head && STATE(q) == COMMITTED));
            assert(q > ledger.head || ledger.shown[q] != 0 || STATE(q) == VOIDED)
        }
        for (p : 0 .. DESTINATIONS - 1) {
            if
            :: ledger.attached[p] && !dest[p].gone && (KNOWN(p) || !HALTS(p)) ->
                assert(KNOWN(p));
                assert(dest[p].mark >= ledger.before || (back && p == 0));
                for (q : 1 .. N) {
                    seen = 0;
                    for (s : 1 .. STEPS) {
                        if :: s <= dest[p].mark && ledger.changes[s] == q -> seen = ledger.token[s] :: else fi
                    }
                    assert(dest[p].shown[q] == seen);
                    assert(dest[p].mark < ledger.step || dest[p].shown[q] == ledger.shown[q])
                }
            :: else
            fi
        }
        p = 0; q = 0; s = 0; seen = 0
    }
}

/* The steps of what is decided, in the order of the line. One decision may be made before a halt shows. */
inline recorded() {
    for (p : 0 .. DESTINATIONS - 1) {
        if :: HALTS(p) -> past[p]++; assert(past[p] <= 1) :: else -> past[p] = 0 fi
    }
    p = 0;
    ledger.before = ledger.step;
    for (q : 1 .. STEPS) {
        if
        :: these & BIT(q) ->
            ledger.step++; ledger.token[ledger.step] = tok; ledger.changes[ledger.step] = TXID(q); tok++
        :: else
        fi
    }
    q = 0
}

#if PLANT == 71 /* decisions wait for a destination that is detached */
#define BEHIND(k) (k < DESTINATIONS && ledger.reached[k] < ledger.step)
#else
#define BEHIND(k) (ledger.attached[k] && ledger.reached[k] < ledger.step)
#endif
#define HELD (BEHIND(0) || BEHIND(1))
#define HAS_TURN (ledger.head < N && STATE(ledger.head + 1) == PREPARED)
#define IS_READY(i) (REVISIONS >= i && STATE(N + i) == PREPARED)
/* What may be decided: nothing while an attached destination lacks a step, for all that the ledger knows. */
#if PLANT == 65 /* nothing holds a group while a destination is behind */
#define GROUP HAS_TURN
#else
#define GROUP (HAS_TURN && !HELD)
#endif
#if PLANT == 76 /* nothing holds a revision while a destination is behind */
#define REVISION(i) IS_READY(i)
#else
#define REVISION(i) (IS_READY(i) && !HELD)
#endif
/* The follower has something to do, and is not started where it would only find that it has to stop. */
#if PLANT == 61 /* a mark is a number alone, and whoever moved it */
#define GOES_ON(k) (dest[k].mark <= ledger.step)
#elif PLANT == 70 /* only who has taken a destination further says so in the ledger */
#define GOES_ON(k) (KNOWN(k) && dest[k].mark < ledger.step)
#elif PLANT == 73 /* nobody sees that a destination has gone back */
#define GOES_ON(k) KNOWN(k)
#else
#define GOES_ON(k) (KNOWN(k) && dest[k].mark >= ledger.reached[k])
#endif
#define FOLLOWS(k) (ledger.attached[k] && ledger.reached[k] < ledger.step && !dest[k].gone && GOES_ON(k))
#define MAY_STOP if :: atomic { stops -> stops--; goto rest } :: true fi

proctype Actor() {
    byte r, was, st, tok, rows, these, k, q, p, s, seen;
#if ATTACHES
    byte copy[N + 1];
#endif
    bool goes_on;
end:
    do
    /* The decision, under the pipeline's lock: states, what is shown, the head, and the steps, in one. */
    :: atomic {
        GROUP || REVISION(1) || REVISION(2) ->
#if PLANT == 68 /* whether a destination is behind is looked at before the lock, and not again */
        goto locks
       }
locks:  atomic {
#undef HELD
#define HELD false
#endif
        if
        :: GROUP ->
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
            goes_on = false; r = 0
        :: REVISION(1) -> these = BIT(N + 1)
        :: REVISION(2) -> these = BIT(N + 2)
        :: else
        fi;
        tok = tokens + 1;
        for (q : 1 .. STEPS) {
            if
            :: these & BIT(q) ->
                STATE(q) = COMMITTED; tokens++; ledger.shown[TXID(q)] = tokens;
                if :: q <= N -> ledger.head = q :: else fi
            :: else
            fi
        }
        q = 0;
        do :: ledger.head < N && STATE(ledger.head + 1) == VOIDED -> ledger.head++ :: else -> break od;
        if :: these == 0 -> goto rest :: else fi;
#if PLANT == 67 /* the step is recorded in another database transaction than the decision */
        goto records
       }
records:
        MAY_STOP;
        atomic {
#endif
        recorded();
        printf("actor %d: the ledger is at step %d\n", _pid, ledger.step);
        readers();
        goto rest
       }

    /* follow: the destination's mark, from the destination */
    :: atomic {
        if
        :: FOLLOWS(0) -> k = 0
        :: FOLLOWS(1) -> k = 1
        fi;
        r = dest[k].mark; was = dest[k].token
       }
        /* From the ledger, in one snapshot: which step that is, the next one, and what is shown of its transaction. */
        atomic {
            if
#if PLANT != 75 /* the snapshot is not asked whether the destination is attached */
            :: !ledger.attached[k] -> goto rest
#endif
#if PLANT == 61
            :: r > ledger.step -> goto rest
#else
            :: !IS_STEP(r, was) -> goto rest /* another's: a stop that shows both */
#endif
#if PLANT != 73
            :: r < ledger.reached[k] -> goto rest /* it has gone back, or another actor was faster */
#endif
            :: else
            fi;
            if
            :: r == ledger.step -> st = r; tok = ledger.token[r]; goto says
            :: else -> st = r + 1; tok = ledger.token[st]; s = ledger.changes[st]
            fi;
#if PLANT == 66 /* the ledger's record goes on before the destination does */
            ledger.reached[k] = st;
#endif
#if PLANT == 74 /* the rows are read in a later snapshot than the step */
            skip
        }
        atomic {
#endif
            rows = ledger.shown[s]
        }
        MAY_STOP;
        /* In the destination: only if its mark is what it was, the rows, in place of the transaction's older ones. */
        atomic {
            if
#if PLANT == 60 /* the destination does not compare its mark in the transaction that takes the rows */
            :: !dest[k].gone ->
#elif PLANT == 61
            :: !dest[k].gone && dest[k].mark == r ->
#else
            :: !dest[k].gone && dest[k].mark == r && dest[k].token == was ->
#endif
                dest[k].shown[s] = rows; dest[k].mark = st; dest[k].token = tok;
                printf("actor %d: destination %d takes step %d\n", _pid, k, st);
                s = 0; readers()
            :: else -> goto rest
            fi
        }
        MAY_STOP;
        /* In the ledger: that the destination has this step, if it is one. */
says:   atomic {
            if
#if PLANT == 72 /* whether what a destination has is a step of this ledger is not looked at again */
            :: ledger.reached[k] < st -> ledger.reached[k] = st
#elif PLANT == 77 /* the ledger's record of a destination goes back */
            :: IS_STEP(st, tok) -> ledger.reached[k] = st
#else
            :: ledger.reached[k] < st && IS_STEP(st, tok) -> ledger.reached[k] = st
#endif
            :: else
            fi
        }
rest:   atomic { r = 0; was = 0; st = 0; tok = 0; rows = 0; these = 0; k = 0; q = 0; p = 0; s = 0; seen = 0 }

#if ATTACHES
    /* attach: the mark, from the destination, then what is committed and its last step, from the ledger */
    :: atomic {
        if
        :: attaches && !ledger.attached[0] && !dest[0].gone -> k = 0
        :: attaches && DESTINATIONS == 2 && !ledger.attached[1] && !dest[1].gone -> k = 1
        fi;
        attaches--;
#if PLANT == 62 /* the mark is read after what is committed */
        st = ledger.step; tok = ledger.token[st];
        for (q : 1 .. N) { copy[q] = ledger.shown[q] }
        q = 0
       }
        atomic {
            r = dest[k].mark; was = dest[k].token;
            if :: r == st && was == tok -> goto stands :: else fi
        }
#else
        r = dest[k].mark; was = dest[k].token
       }
        atomic {
            st = ledger.step; tok = ledger.token[st];
#if PLANT == 79 /* what is committed is read in a later snapshot than its last step */
            skip
        }
        atomic {
#endif
            for (q : 1 .. N) { copy[q] = ledger.shown[q] }
            q = 0;
            if :: r == st && was == tok -> goto stands :: else fi
        }
#endif
        MAY_STOP;
        /* It is made anew, in one transaction that compares its mark. */
        atomic {
            if
#if PLANT == 63 /* it is made anew whatever its mark is meanwhile */
            :: !dest[k].gone ->
#else
            :: !dest[k].gone && dest[k].mark == r && dest[k].token == was ->
#endif
                for (q : 1 .. N) { dest[k].shown[q] = copy[q] }
                q = 0; dest[k].mark = st; dest[k].token = tok;
                printf("actor %d: destination %d is made anew at step %d\n", _pid, k, st);
                readers()
            :: else -> goto unattached
            fi
        }
        MAY_STOP;
stands: atomic {
            if
#if PLANT == 64 /* nobody looks whether there are steps meanwhile */
            :: true ->
#else
            :: ledger.step == st && ledger.token[st] == tok ->
#endif
                ledger.attached[k] = true;
#if PLANT != 78 /* attach leaves the ledger's record of what the destination has as it was */
                ledger.reached[k] = st;
#endif
                printf("actor %d: destination %d is attached\n", _pid, k);
                readers()
            :: else
            fi
        }
unattached: atomic { for (q : 1 .. N) { copy[q] = 0 } }
        goto rest
#endif
    od
}

#if PLANT == 69 /* what is decided can still be voided */
#define MAY_VOID(i) (UNDECIDED(i) || STATE(i) == COMMITTED)
#else
#define MAY_VOID(i) (UNDECIDED(i))
#endif

/* What happens to rows, and what people and the world do. */
proctype Fate() {
    byte r, q, p, s, seen;
end:
    do
    :: atomic {
        if
        :: STATE(1) == OPEN -> STATE(1) = PREPARED
        :: STATE(2) == OPEN -> STATE(2) = PREPARED
        :: STATE(3) == OPEN -> STATE(3) = PREPARED
        :: STATE(4) == OPEN -> STATE(4) = PREPARED
        :: STATE(5) == OPEN -> STATE(5) = PREPARED
        fi
       }
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
        STATE(r) = OPEN; r = 0 }
    /* moves.void */
    :: atomic {
        if
        :: voids && MAY_VOID(1) -> r = 1
        :: voids && N >= 2 && MAY_VOID(2) -> r = 2
        :: voids && N >= 3 && MAY_VOID(3) -> r = 3
        fi;
        voids--; STATE(r) = VOIDED;
        do :: ledger.head < N && STATE(ledger.head + 1) == VOIDED -> ledger.head++ :: else -> break od;
        printf("a person voids transaction %d\n", r); r = 0; readers() }
#if REVISIONS
    /* revise.revise: an unfinished one of the same transaction is superseded */
    :: atomic { ledger.revised < REVISIONS && ledger.head >= 1 ->
        if :: STATE(1) == COMMITTED -> r = 1 :: ledger.head >= 2 && STATE(2) == COMMITTED -> r = 2 fi;
        if
        :: ledger.revised == 1 && ledger.revises[0] == r && UNDECIDED(N + 1) -> STATE(N + 1) = ABORTED
        :: else
        fi;
        ledger.revises[ledger.revised] = r; ledger.revised++; STATE(N + ledger.revised) = OPEN; r = 0 }
#endif
    :: atomic { lost ->
        lost--; if :: dest[0].gone = true :: DESTINATIONS == 2 -> dest[1].gone = true fi;
        printf("a destination is lost\n") }
    :: atomic { foreign ->
        foreign--; moved = true; dest[0].token = 0; if :: dest[0].mark++ :: true fi;
        printf("somebody moves the mark of destination 0\n") }
    :: atomic {
        if
        :: detaches && ledger.attached[0] -> r = 0
        :: detaches && DESTINATIONS == 2 && ledger.attached[1] -> r = 1
        fi;
        detaches--; ledger.attached[r] = false; past[r] = 0; printf("a person detaches destination %d\n", r); r = 0 }
#if BACKS
    :: atomic { !kept && backs ->
        kept = true; older.mark = dest[0].mark; older.token = dest[0].token;
        for (q : 1 .. N) { older.shown[q] = dest[0].shown[q] }
        q = 0 }
    :: atomic { kept && backs ->
        backs--; back = true; dest[0].mark = older.mark; dest[0].token = older.token;
        for (q : 1 .. N) { dest[0].shown[q] = older.shown[q] }
        q = 0; printf("a backup comes in place of destination 0\n") }
#endif
#if RESTORES
    :: atomic { !saved && restores -> saved = true; copied(backup, ledger) }
    :: atomic { saved && restores ->
        restores--; restored = true; copied(ledger, backup); past[0] = 0; past[1] = 0;
        printf("a backup comes in place of the ledger\n"); readers() }
#endif
    od
}

#define OVER(i) (STATE(i) == COMMITTED || STATE(i) == VOIDED || STATE(i) == NONE || (i > N && STATE(i) == ABORTED))
#define SAME(k) (!ledger.attached[k] || (dest[k].mark == ledger.step && KNOWN(k) \
    && dest[k].shown[1] == ledger.shown[1] && (N < 2 || dest[k].shown[2] == ledger.shown[2]) \
    && dest[k].shown[N] == ledger.shown[N]))
proctype Final() {
end:
    timeout -> assert(HALTS(0) || HALTS(1) || (ledger.head == N && OVER(1) && OVER(2) && OVER(3)
        && OVER(4) && OVER(5) && SAME(0) && SAME(1)))
}

init {
    byte i;
    atomic {
        for (i : 0 .. ROWS - 1) { STATE(i) = NONE }
        for (i : 1 .. N) { STATE(i) = OPEN }
        ledger.token[0] = tokens;
        for (i : 0 .. DESTINATIONS - 1) { ledger.attached[i] = true; dest[i].token = tokens }
        for (i : 1 .. ACTORS) { run Actor() }
        run Fate();
        run Final()
    }
}
