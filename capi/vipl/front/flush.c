/*
 * The flusher is a thread that hands over gathered sends of a program that makes no further call
 * of the library. It is started with the first gathered send, and sleeps while no queue has any.
 * On few processors its checks cost the program time. So they become rarer while a program
 * streams, because then its own posts hand over the gathered sends.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>
#include "front.h"

#define RAREST 100000 /* largest ns between two checks */
#define ROUNDS 50     /* checks without a gathered send until a queue is no longer watched */
#define LONGEST 1023  /* longest pause, in posts, after gathering delayed a send */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wanted = PTHREAD_COND_INITIALIZER;
static struct queue *watched; /* guarded by lock */

/*
 * fetch hands over the sends of q if they have waited for PATIENCE. While another thread holds the
 * lock of the queue, fetch does nothing; the next check tries again.
 */
static void fetch(struct queue *q, uint64_t now) {
	struct burst *b = &q->burst;
	uint64_t since = atomic_load(&b->since);

	if (since == 0 || now - since < PATIENCE || pthread_mutex_trylock(&q->lock) != 0)
		return;
	if (b->n > 0 && now - atomic_load(&b->since) >= PATIENCE) {
		b->vain = b->vain * 2 + 1 < LONGEST ? b->vain * 2 + 1 : LONGEST;
		b->rest = b->vain;
		hand_over_locked(q);
	}
	pthread_mutex_unlock(&q->lock);
}

static void *flusher(void *unused) {
	struct timespec pause = {0, PATIENCE};
	struct queue **at, *q;
	uint64_t now;
	int streams;

	(void)unused;
	prctl(PR_SET_NAME, "vipl flusher");
	prctl(PR_SET_TIMERSLACK, 1000UL);
	pthread_mutex_lock(&lock);
	for (;;) {
		while (!watched)
			pthread_cond_wait(&wanted, &lock);
		pthread_mutex_unlock(&lock);
		nanosleep(&pause, NULL);
		pthread_mutex_lock(&lock);
		now = nanoseconds();
		streams = 1;
		for (at = &watched; (q = *at);) {
			struct burst *b = &q->burst;
			unsigned handed = atomic_load_explicit(&b->handed, memory_order_relaxed);

			if (handed - b->looked < 2)
				streams = 0;
			b->looked = handed;
			if (atomic_load(&b->since)) {
				b->idle = 0;
				fetch(q, now);
			} else if (++b->idle > ROUNDS) {
				atomic_store(&b->watched, 0);
				if (!atomic_load(&b->since)) {
					*at = b->next;
					continue;
				}
				atomic_store(&b->watched, 1);
			}
			at = &b->next;
		}
		pause.tv_nsec = streams && pause.tv_nsec * 2 <= RAREST ? pause.tv_nsec * 2 : streams ? RAREST : PATIENCE;
	}
	return NULL;
}

static int running;

static void start_flusher(void) {
	sigset_t all, old;
	pthread_t t;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	if (pthread_create(&t, NULL, flusher, NULL) == 0) {
		pthread_detach(t);
		running = 1;
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

int watch(struct queue *q) {
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct burst *b = &q->burst;
	struct queue *x;

	if (atomic_load_explicit(&b->watched, memory_order_relaxed))
		return 0;
	pthread_once(&once, start_flusher);
	if (!running)
		return -1;
	pthread_mutex_lock(&lock);
	for (x = watched; x && x != q; x = x->burst.next)
		;
	if (!x) {
		b->next = watched;
		watched = q;
	}
	b->idle = 0;
	atomic_store(&b->watched, 1);
	pthread_cond_signal(&wanted);
	pthread_mutex_unlock(&lock);
	return 0;
}

/* leave hands over the gathered sends of a program that exits, except those of locked queues. */
__attribute__((destructor)) static void leave(void) {
	struct queue *q;

	if (atomic_load(&orphaned) || pthread_mutex_trylock(&lock) != 0)
		return;
	for (q = watched; q; q = q->burst.next)
		if (pthread_mutex_trylock(&q->lock) == 0) {
			hand_over_locked(q);
			pthread_mutex_unlock(&q->lock);
		}
	pthread_mutex_unlock(&lock);
}
