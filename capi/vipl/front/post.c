/*
 * A receive is passed to the Go half at once, because the peer may use it as soon as the call has
 * returned. Sends that are posted one after the other are gathered, since a system call for each
 * costs more than all other work for a small message. Gathering ends when the program waits or
 * polls an empty queue, when GATHER sends are gathered, when the thread makes any other call, or
 * when PATIENCE has passed (flush.c).
 *
 * The first send after a wait is handed over at once, so that gathering does not delay a message
 * and its answer. If the program has posted several sends before its last wait, the first one is
 * gathered as well. Taking the last arrived message counts as a wait, because the next post may be
 * an answer. If the flusher had to fetch the posts of a queue, for example because its program
 * watches memory, the next posts to the queue are not gathered. Their number doubles each time.
 */
#include <time.h>
#include "front.h"

#define SEVERAL 4    /* posts between two waits for which the first is gathered too */

_Thread_local struct queue *gathering, *posted;

uint64_t nanoseconds(void) {
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/*
 * give_locked posts to the Go half. It also takes the sends that have completed by then, usually
 * most of them, so that reaping them needs no further call of that half. After a long send the
 * next GATHER sends are not gathered, because copying the bytes of a long send dominates the cost,
 * and the flusher would disturb the copy.
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

/* gathers_locked reports whether to gather a send, and counts the post. */
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
	/* Check after the store, because the flusher stops watching a queue before its last check. */
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
