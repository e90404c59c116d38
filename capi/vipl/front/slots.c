/*
 * A slot is the record of the C half for a VI or a completion queue. The index in the handle finds
 * the slot. Slots are allocated in chunks and never freed, so that a stale handle leads to a free
 * slot or to the slot of another object, but never to freed memory.
 */
#include <stdlib.h>
#include "front.h"

#define CHUNK 64
#define CHUNKS ((1 << 20) / CHUNK)

static _Atomic(struct vi *) vi_chunks[CHUNKS];
static _Atomic(struct cq *) cq_chunks[CHUNKS];
static pthread_mutex_t growing = PTHREAD_MUTEX_INITIALIZER;

static struct vi *vi_slot(uintptr_t h) {
	struct vi *c;

	if (VIPL_KIND(h) != VIPL_VI)
		return NULL;
	c = atomic_load_explicit(&vi_chunks[VIPL_INDEX(h) / CHUNK], memory_order_acquire);
	return c ? &c[VIPL_INDEX(h) % CHUNK] : NULL;
}

static struct cq *cq_slot(uintptr_t h) {
	struct cq *c;

	if (VIPL_KIND(h) != VIPL_CQ)
		return NULL;
	c = atomic_load_explicit(&cq_chunks[VIPL_INDEX(h) / CHUNK], memory_order_acquire);
	return c ? &c[VIPL_INDEX(h) % CHUNK] : NULL;
}

struct vi *vi_of(uintptr_t h) {
	struct vi *v = vi_slot(h);

	return v && atomic_load_explicit(&v->handle, memory_order_acquire) == h ? v : NULL;
}

struct cq *cq_of(uintptr_t h) {
	struct cq *c = cq_slot(h);

	return c && atomic_load_explicit(&c->handle, memory_order_acquire) == h ? c : NULL;
}

static void queue_enter(struct queue *q, uintptr_t h, int recv, int attached, int gather) {
	pthread_mutex_lock(&q->lock);
	q->handle = h;
	q->recv = recv;
	q->attached = attached;
	q->waiters = 0;
	q->first = q->n = 0;
	q->poll.vain = 0;
	q->burst.off = !gather;
	q->burst.n = q->burst.run = q->burst.before = q->burst.vain = q->burst.rest = 0;
	atomic_store(&q->burst.since, 0);
	pthread_mutex_unlock(&q->lock);
}

/* queue_leave forgets taken and gathered descriptors, because they have no owner any more. */
static void queue_leave(struct queue *q) {
	pthread_mutex_lock(&q->lock);
	q->n = q->burst.n = 0;
	atomic_store(&q->burst.since, 0);
	pthread_mutex_unlock(&q->lock);
}

struct vi *vi_enter(uintptr_t h, uintptr_t nic, int send_attached, int recv_attached, int gather) {
	_Atomic(struct vi *) *at = &vi_chunks[VIPL_INDEX(h) / CHUNK];
	struct vi *c, *v;
	int i;

	pthread_mutex_lock(&growing);
	c = atomic_load(at);
	if (!c && (c = calloc(CHUNK, sizeof *c))) {
		for (i = 0; i < CHUNK; i++) {
			pthread_mutex_init(&c[i].q[0].lock, NULL);
			pthread_mutex_init(&c[i].q[1].lock, NULL);
		}
		atomic_store_explicit(at, c, memory_order_release);
	}
	pthread_mutex_unlock(&growing);
	if (!c)
		return NULL;
	v = &c[VIPL_INDEX(h) % CHUNK];
	v->nic = nic;
	atomic_store(&v->user, NULL);
	queue_enter(&v->q[0], h, 0, send_attached, gather);
	queue_enter(&v->q[1], h, 1, recv_attached, 0);
	atomic_store_explicit(&v->handle, h, memory_order_release);
	return v;
}

int cq_enter(uintptr_t h, uintptr_t nic) {
	_Atomic(struct cq *) *at = &cq_chunks[VIPL_INDEX(h) / CHUNK];
	struct cq *c;
	int i;

	pthread_mutex_lock(&growing);
	c = atomic_load(at);
	if (!c && (c = calloc(CHUNK, sizeof *c))) {
		for (i = 0; i < CHUNK; i++)
			pthread_mutex_init(&c[i].q.lock, NULL);
		atomic_store_explicit(at, c, memory_order_release);
	}
	pthread_mutex_unlock(&growing);
	if (!c)
		return -1;
	c += VIPL_INDEX(h) % CHUNK;
	c->nic = nic;
	queue_enter(&c->q, h, 0, 0, 0);
	atomic_store_explicit(&c->handle, h, memory_order_release);
	return 0;
}

void vi_leave(uintptr_t h) {
	struct vi *v = vi_slot(h);

	if (v && atomic_compare_exchange_strong(&v->handle, &h, 0)) {
		queue_leave(&v->q[0]);
		queue_leave(&v->q[1]);
	}
}

void cq_leave(uintptr_t h) {
	struct cq *c = cq_slot(h);

	if (c && atomic_compare_exchange_strong(&c->handle, &h, 0))
		queue_leave(&c->q);
}

void nic_leave(uintptr_t nic) {
	struct vi *v;
	struct cq *c;
	int i, k;

	for (i = 0; i < CHUNKS; i++) {
		if ((v = atomic_load(&vi_chunks[i])))
			for (k = 0; k < CHUNK; k++)
				if (atomic_load(&v[k].handle) && v[k].nic == nic)
					vi_leave(v[k].handle);
		if ((c = atomic_load(&cq_chunks[i])))
			for (k = 0; k < CHUNK; k++)
				if (atomic_load(&c[k].handle) && c[k].nic == nic)
					cq_leave(c[k].handle);
	}
}
