/*
 * The C half of libvipl: the interface to programs. The documentation in main.go describes how the
 * halves divide the work.
 */
#ifndef VIPL_FRONT_H
#define VIPL_FRONT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include "../engine.h"

#define TAKE 32   /* descriptors or entries taken from a queue at a time */
#define GATHER 16 /* most sends handed to the Go half at a time */

/* A burst records how a program posts to a send queue; see post.c. */
struct burst {
	struct vipl_post post[GATHER]; /* gathered, not yet handed to the Go half */
	unsigned n;
	_Atomic unsigned handed; /* number of hand-overs */
	_Atomic uint64_t since; /* time in ns at which the first gathered send was posted; 0: there is none */
	uint64_t last;          /* time in ns of the last post that was not gathered */
	unsigned run, before;   /* posts since the last wait, and between the last two waits */
	_Atomic int waited;     /* the program has waited since the last post */
	unsigned vain, rest;    /* in posts: last pause after gathering delayed a send, and its remainder */
	int off;                /* never gather */

	/* Used by the flusher, guarded by its lock; see flush.c. */
	struct queue *next;
	_Atomic int watched;
	unsigned idle, looked;
};

/* A poll records how a program polls a queue; see poll.c. */
struct poll {
	int vain, looks, fit;  /* empty checks in a row; checks of the last call; checks that fit into one call */
	uint64_t began, ended; /* time of the last call, in ns; set once vain is EAGER */
};

/* A work queue or completion queue of a program. Its memory is never freed. */
struct queue {
	pthread_mutex_t lock;
	uintptr_t handle; /* of the VI or completion queue */
	int recv;

	/* Guarded by lock: */
	int attached;        /* 1 for a work queue that is attached to a completion queue */
	int waiters;         /* threads that wait in the Go half; they take precedence over the C half */
	unsigned first, n;   /* first element of taken that the program has not reaped, and their number */
	struct burst burst;  /* used for a send queue only */
	struct poll poll;
	union {
		struct vipl_ready ready[TAKE];
		struct vipl_entry entry[TAKE];
	} taken;
};

struct vi {
	_Atomic uintptr_t handle; /* 0 while the slot is free */
	uintptr_t nic;
	_Atomic(void *) user;
	struct queue q[2]; /* send, receive */
};

struct cq {
	_Atomic uintptr_t handle;
	uintptr_t nic;
	struct queue q;
};

/* slots.c */
struct vi *vi_of(uintptr_t h);
struct cq *cq_of(uintptr_t h);
struct vi *vi_enter(uintptr_t h, uintptr_t nic, int send_attached, int recv_attached, int gather);
int cq_enter(uintptr_t h, uintptr_t nic);
void vi_leave(uintptr_t h);
void cq_leave(uintptr_t h);
void nic_leave(uintptr_t h); /* frees the slots of all VIs and completion queues of a NIC */

/* start.c */
int start(void);                      /* starts the Go half; 0, or -1 on failure */
extern _Atomic int started, orphaned; /* orphaned: in a child of fork */

/* post.c */
VIP_RETURN post(struct queue *q, VIP_DESCRIPTOR *d, VIP_MEM_HANDLE h);
VIP_RETURN hand_over_locked(struct queue *q); /* passes gathered sends to the Go half */
void hand_over(struct queue *q);
uint64_t nanoseconds(void);

/* The send queue that this thread has gathered for, and the last that it has posted to; or NULL. */
extern _Thread_local struct queue *gathering, *posted;

/* hand_over_mine precedes every call that depends on the sends that this thread has gathered. */
static inline void hand_over_mine(void) {
	if (gathering)
		hand_over(gathering);
}

/* waits records that the program waits, or has polled an empty queue. */
static inline void waits(void) {
	if (posted)
		atomic_store_explicit(&posted->burst.waited, 1, memory_order_relaxed);
}

/* poll.c */
int looks_locked(struct queue *q); /* number of checks for the Go half */
void looked_locked(struct queue *q, int found);

/* flush.c */
#define PATIENCE 20000          /* longest time of gathering, in ns */
int watch(struct queue *q);     /* makes the flusher watch a queue; 0 or -1 */

/* handlers.c */
extern _Thread_local int in_notify;

/* The Go half. */
int vipl_go_open_nic(char *name, uintptr_t *nic);
int vipl_go_close_nic(uintptr_t nic, int in_notify);
int vipl_go_query_nic(uintptr_t nic, VIP_NIC_ATTRIBUTES *out);
int vipl_go_create_ptag(uintptr_t nic, uintptr_t *out);
int vipl_go_destroy_ptag(uintptr_t nic, uintptr_t ptag);
int vipl_go_register_mem(uintptr_t nic, uintptr_t addr, VIP_ULONG length, VIP_MEM_ATTRIBUTES *attrs, VIP_MEM_HANDLE *out);
int vipl_go_deregister_mem(uintptr_t nic, uintptr_t addr, VIP_MEM_HANDLE mem);
int vipl_go_set_mem_attributes(uintptr_t nic, uintptr_t addr, VIP_MEM_HANDLE mem, VIP_MEM_ATTRIBUTES *attrs);
int vipl_go_query_mem(uintptr_t nic, uintptr_t addr, VIP_MEM_HANDLE mem, VIP_MEM_ATTRIBUTES *out);
int vipl_go_create_vi(uintptr_t nic, VIP_VI_ATTRIBUTES *attrs, uintptr_t send_cq, uintptr_t recv_cq, uintptr_t *out);
int vipl_go_gathers(uintptr_t nic);
int vipl_go_destroy_vi(uintptr_t vi, int taken);
int vipl_go_set_vi_attributes(uintptr_t vi, VIP_VI_ATTRIBUTES *attrs);
int vipl_go_query_vi(uintptr_t vi, VIP_VI_STATE *state, VIP_VI_ATTRIBUTES *attrs, VIP_BOOLEAN *send_empty, VIP_BOOLEAN *recv_empty);
int vipl_go_connect_wait(uintptr_t nic, VIP_NET_ADDRESS *local, VIP_ULONG timeout, VIP_NET_ADDRESS *remote,
	VIP_VI_ATTRIBUTES *attrs, uintptr_t *out);
int vipl_go_connect_accept(uintptr_t conn, uintptr_t vi);
int vipl_go_connect_reject(uintptr_t conn);
int vipl_go_connect_request(uintptr_t vi, VIP_NET_ADDRESS *local, VIP_NET_ADDRESS *remote, VIP_ULONG timeout, VIP_VI_ATTRIBUTES *attrs);
int vipl_go_disconnect(uintptr_t vi);
int vipl_go_connect_peer_request(uintptr_t vi, VIP_NET_ADDRESS *local, VIP_NET_ADDRESS *remote, VIP_ULONG timeout);
int vipl_go_connect_peer_result(uintptr_t vi, int wait, VIP_VI_ATTRIBUTES *attrs);
int vipl_go_post(uintptr_t vi, int recv, struct vipl_post *posts, int n, struct vipl_ready *out, int max, int *ended, int *is_long);
int vipl_go_done(uintptr_t vi, int recv, int looks, struct vipl_ready *out, int max, int *n);
int vipl_go_wait(uintptr_t vi, int recv, VIP_ULONG timeout, struct vipl_ready *out);
int vipl_go_notify(uintptr_t vi, int recv, void *context, vipl_notify f, VIP_DESCRIPTOR *taken);
int vipl_go_create_cq(uintptr_t nic, VIP_ULONG entries, uintptr_t *out);
int vipl_go_destroy_cq(uintptr_t cq);
int vipl_go_resize_cq(uintptr_t cq, VIP_ULONG entries);
int vipl_go_cq_done(uintptr_t cq, int looks, struct vipl_entry *out, int max, int *n);
int vipl_go_cq_wait(uintptr_t cq, VIP_ULONG timeout, struct vipl_entry *out);
int vipl_go_cq_notify(uintptr_t cq, void *context, vipl_cq_notify f, uintptr_t taken, int recv);
int vipl_go_error_callback(uintptr_t nic, void *context, vipl_error f);
int vipl_go_ns_init(uintptr_t nic);
int vipl_go_ns_shutdown(uintptr_t nic);
int vipl_go_ns_by_name(uintptr_t nic, char *name, VIP_NET_ADDRESS *out, VIP_ULONG index);
int vipl_go_ns_by_addr(uintptr_t nic, VIP_NET_ADDRESS *addr, char *name, VIP_ULONG *room);
int vipl_go_autodiscovery(uintptr_t nic, VIP_NET_ADDRESS **out, VIP_ULONG *n);

#endif
