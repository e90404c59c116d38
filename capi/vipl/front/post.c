/*
 * Posting. A receive is the Go half's at once: the peer may use it as soon as the
 * call has returned. Sends that are posted one after the other are gathered, since
 * a system call for each costs more than everything else about a small message:
 * until the program waits or looks for something that is not there, GATHER are
 * together, the thread calls anything else, or PATIENCE has passed (flush.c).
 *
 * The first send after a wait goes out at once, so that a message and its answer
 * take no longer than ever, unless the program has posted several before its last
 * wait. Taking the last message that has come is as good as a wait: an answer may
 * be what is posted next. A queue whose posts had to be fetched by the flusher, whose program watches
 * memory for example, is left alone for a while, which doubles each time.
 */
#include <time.h>
#include "front.h"

#define SEVERAL 4    /* posts between two waits from which the first is gathered too */

_Thread_local struct queue *gathering, *posted;

uint64_t nanoseconds(void) {
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/*
 * give_locked posts to the Go half. What has ended by then of a send queue, as most
 * sends have, is taken along, so that asking for it needs no call of that half. Behind a long
 * send none are gathered: what it costs is moving its bytes, and the flusher would disturb that.
 */
static VIP_RETURN give_locked(struct queue *q, struct vipl_post *posts, unsigned n) {
	int take = !q->recv && q->n == 0 && q->waiters == 0, ended = 0, is_long = 0;
	VIP_RETURN r = vipl_go_post(q->handle, q->recv, posts, n, q->taken.ready, take ? TAKE : 0, &ended, &is_long);

	if (is_long && q->burst.rest < GATHER)
		q->burst.rest = GATHER;
	if (ended) {
		q->first = 0;
		q->n = ended;
	}
	return r;
}

VIP_RETURN hand_over_locked(struct queue *q) {
	struct burst *b = &q->burst;
	unsigned n = b->n;

	if (n == 0)
		return VIP_SUCCESS;
	b->n = 0;
	atomic_fetch_add_explicit(&b->handed, 1, memory_order_relaxed);
	atomic_store_explicit(&b->since, 0, memory_order_relaxed);
	return give_locked(q, b->post, n);
}

void hand_over(struct queue *q) {
	if (gathering == q)
		gathering = NULL;
	if (atomic_load_explicit(&q->burst.since, memory_order_relaxed) == 0)
		return;
	pthread_mutex_lock(&q->lock);
	hand_over_locked(q);
	pthread_mutex_unlock(&q->lock);
}

/* gathers_locked reports whether a send is to be gathered, and notes it. */
static int gathers_locked(struct queue *q) {
	struct burst *b = &q->burst;
	uint64_t now;

	if (b->off)
		return 0;
	if (atomic_load_explicit(&b->waited, memory_order_relaxed)) {
		atomic_store_explicit(&b->waited, 0, memory_order_relaxed);
		b->before = b->run;
		b->run = 0;
	}
	b->run++;
	if (b->n > 0)
		return 1;
	if (b->rest > 0) {
		b->rest--;
		return 0;
	}
	now = nanoseconds();
	if (b->before < SEVERAL && (b->run == 1 || now - b->last > PATIENCE)) {
		b->last = now;
		return 0;
	}
	if (watch(q) != 0)
		return 0;
	atomic_store(&b->since, now);
	/* Behind the store: the flusher gives a queue up before it looks a last time. */
	if (!atomic_load(&b->watched))
		watch(q);
	return 1;
}

VIP_RETURN post(struct queue *q, VIP_DESCRIPTOR *d, VIP_MEM_HANDLE h) {
	struct vipl_post one = {d, h};
	struct burst *b = &q->burst;
	VIP_RETURN r = VIP_SUCCESS;

	if (gathering != q)
		hand_over_mine();
	if (!q->recv)
		posted = q;
	pthread_mutex_lock(&q->lock);
	if (q->recv || !gathers_locked(q)) {
		r = give_locked(q, &one, 1);
	} else {
		gathering = q;
		b->post[b->n++] = one;
		if (b->n == GATHER) {
			gathering = NULL;
			b->vain /= 2;
			r = hand_over_locked(q);
		}
	}
	pthread_mutex_unlock(&q->lock);
	return r;
}
