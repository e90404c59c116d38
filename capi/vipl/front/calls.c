/* The calls of VIPL. They check pointers and call the Go half. */
#include "front.h"

#define N(h) ((uintptr_t)(h))

/* blocked sets *r and returns 1 if every call fails: in a child of fork, and before a NIC was opened. */
static int blocked(VIP_RETURN *r) {
	if (atomic_load_explicit(&orphaned, memory_order_relaxed)) {
		*r = VIP_ERROR_RESOURCE;
		return 1;
	}
	if (!atomic_load_explicit(&started, memory_order_acquire)) {
		*r = VIP_INVALID_PARAMETER;
		return 1;
	}
	return 0;
}

/* CHECK begins the calls that post, and those that the C half may answer itself. */
#define CHECK(valid)                                 \
	do {                                         \
		VIP_RETURN blocked_;                 \
		if (blocked(&blocked_))              \
			return blocked_;             \
		if (!(valid))                        \
			return VIP_INVALID_PARAMETER; \
	} while (0)

/* ENTER begins all other calls: it first hands over the sends that this thread has posted. */
#define ENTER(valid)                                 \
	do {                                         \
		CHECK(valid);                        \
		hand_over_mine();                    \
	} while (0)

/* ---- NICs --------------------------------------------------------------- */

VIP_RETURN VipOpenNic(const VIP_CHAR *name, VIP_NIC_HANDLE *out) {
	uintptr_t h;
	VIP_RETURN r;

	if (atomic_load(&orphaned))
		return VIP_ERROR_RESOURCE;
	if (!name || !out)
		return VIP_INVALID_PARAMETER;
	if (start() != 0)
		return VIP_ERROR_RESOURCE;
	r = vipl_go_open_nic((char *)name, &h);
	if (r == VIP_SUCCESS)
		*out = (VIP_NIC_HANDLE)h;
	return r;
}

VIP_RETURN VipCloseNic(VIP_NIC_HANDLE nic) {
	VIP_RETURN r;

	ENTER(nic);
	r = vipl_go_close_nic(N(nic), in_notify);
	if (r == VIP_SUCCESS)
		nic_leave(N(nic));
	return r;
}

VIP_RETURN VipQueryNic(VIP_NIC_HANDLE nic, VIP_NIC_ATTRIBUTES *out) {
	ENTER(nic && out);
	return vipl_go_query_nic(N(nic), out);
}

/* ---- Protection tags and memory ----------------------------------------- */

VIP_RETURN VipCreatePtag(VIP_NIC_HANDLE nic, VIP_PROTECTION_HANDLE *out) {
	uintptr_t h;
	VIP_RETURN r;

	ENTER(nic && out);
	r = vipl_go_create_ptag(N(nic), &h);
	if (r == VIP_SUCCESS)
		*out = (VIP_PROTECTION_HANDLE)h;
	return r;
}

VIP_RETURN VipDestroyPtag(VIP_NIC_HANDLE nic, VIP_PROTECTION_HANDLE ptag) {
	ENTER(nic && ptag);
	return vipl_go_destroy_ptag(N(nic), N(ptag));
}

VIP_RETURN VipRegisterMem(VIP_NIC_HANDLE nic, VIP_PVOID addr, VIP_ULONG length, VIP_MEM_ATTRIBUTES *attrs, VIP_MEM_HANDLE *out) {
	ENTER(nic && addr && out);
	return vipl_go_register_mem(N(nic), N(addr), length, attrs, out);
}

VIP_RETURN VipDeregisterMem(VIP_NIC_HANDLE nic, VIP_PVOID addr, VIP_MEM_HANDLE mem) {
	ENTER(nic && addr && mem);
	return vipl_go_deregister_mem(N(nic), N(addr), mem);
}

VIP_RETURN VipSetMemAttributes(VIP_NIC_HANDLE nic, VIP_PVOID addr, VIP_MEM_HANDLE mem, VIP_MEM_ATTRIBUTES *attrs) {
	ENTER(nic && addr && mem && attrs);
	return vipl_go_set_mem_attributes(N(nic), N(addr), mem, attrs);
}

VIP_RETURN VipQueryMem(VIP_NIC_HANDLE nic, VIP_PVOID addr, VIP_MEM_HANDLE mem, VIP_MEM_ATTRIBUTES *out) {
	ENTER(nic && addr && mem && out);
	return vipl_go_query_mem(N(nic), N(addr), mem, out);
}

/* ---- VIs ---------------------------------------------------------------- */

VIP_RETURN VipCreateVi(VIP_NIC_HANDLE nic, VIP_VI_ATTRIBUTES *attrs, VIP_CQ_HANDLE send_cq, VIP_CQ_HANDLE recv_cq, VIP_VI_HANDLE *out) {
	uintptr_t h;
	VIP_RETURN r;

	ENTER(nic && attrs && out);
	r = vipl_go_create_vi(N(nic), attrs, N(send_cq), N(recv_cq), &h);
	if (r != VIP_SUCCESS)
		return r;
	if (!vi_enter(h, N(nic), send_cq != NULL, recv_cq != NULL, vipl_go_gathers(N(nic)))) {
		vipl_go_destroy_vi(h, 0);
		return VIP_ERROR_RESOURCE;
	}
	*out = (VIP_VI_HANDLE)h;
	return VIP_SUCCESS;
}

/* lock_both locks both queues of a VI, and hands over its gathered sends. */
static void lock_both(struct vi *v) {
	pthread_mutex_lock(&v->q[0].lock);
	pthread_mutex_lock(&v->q[1].lock);
	hand_over_locked(&v->q[0]);
}

static void unlock_both(struct vi *v) {
	pthread_mutex_unlock(&v->q[1].lock);
	pthread_mutex_unlock(&v->q[0].lock);
}

VIP_RETURN VipDestroyVi(VIP_VI_HANDLE vi) {
	struct vi *v;
	VIP_RETURN r;

	ENTER(v = vi_of(N(vi)));
	lock_both(v);
	r = vipl_go_destroy_vi(N(vi), v->q[0].n + v->q[1].n != 0);
	unlock_both(v);
	if (r == VIP_SUCCESS)
		vi_leave(N(vi));
	return r;
}

VIP_RETURN VipSetViAttributes(VIP_VI_HANDLE vi, VIP_VI_ATTRIBUTES *attrs) {
	ENTER(vi && attrs);
	return vipl_go_set_vi_attributes(N(vi), attrs);
}

VIP_RETURN VipQueryVi(VIP_VI_HANDLE vi, VIP_VI_STATE *state, VIP_VI_ATTRIBUTES *attrs, VIP_BOOLEAN *send_empty, VIP_BOOLEAN *recv_empty) {
	struct vi *v;
	VIP_RETURN r;

	ENTER(v = vi_of(N(vi)));
	lock_both(v);
	r = vipl_go_query_vi(N(vi), state, attrs, send_empty, recv_empty);
	if (r == VIP_SUCCESS && send_empty && v->q[0].n)
		*send_empty = VIP_FALSE;
	if (r == VIP_SUCCESS && recv_empty && v->q[1].n)
		*recv_empty = VIP_FALSE;
	unlock_both(v);
	return r;
}

/* ---- Connections -------------------------------------------------------- */

VIP_RETURN VipConnectWait(VIP_NIC_HANDLE nic, VIP_NET_ADDRESS *local, VIP_ULONG timeout, VIP_NET_ADDRESS *remote,
	VIP_VI_ATTRIBUTES *attrs, VIP_CONN_HANDLE *out) {
	uintptr_t h;
	VIP_RETURN r;

	ENTER(nic && local && remote && out);
	r = vipl_go_connect_wait(N(nic), local, timeout, remote, attrs, &h);
	if (r == VIP_SUCCESS)
		*out = (VIP_CONN_HANDLE)h;
	return r;
}

VIP_RETURN VipConnectAccept(VIP_CONN_HANDLE conn, VIP_VI_HANDLE vi) {
	ENTER(conn && vi);
	return vipl_go_connect_accept(N(conn), N(vi));
}

VIP_RETURN VipConnectReject(VIP_CONN_HANDLE conn) {
	ENTER(conn);
	return vipl_go_connect_reject(N(conn));
}

VIP_RETURN VipConnectRequest(VIP_VI_HANDLE vi, VIP_NET_ADDRESS *local, VIP_NET_ADDRESS *remote, VIP_ULONG timeout, VIP_VI_ATTRIBUTES *attrs) {
	ENTER(vi && local && remote);
	return vipl_go_connect_request(N(vi), local, remote, timeout, attrs);
}

VIP_RETURN VipDisconnect(VIP_VI_HANDLE vi) {
	struct vi *v;

	ENTER(v = vi_of(N(vi)));
	lock_both(v);
	unlock_both(v);
	return vipl_go_disconnect(N(vi));
}

VIP_RETURN VipConnectPeerRequest(VIP_VI_HANDLE vi, VIP_NET_ADDRESS *local, VIP_NET_ADDRESS *remote, VIP_ULONG timeout) {
	ENTER(vi && local && remote);
	return vipl_go_connect_peer_request(N(vi), local, remote, timeout);
}

VIP_RETURN VipConnectPeerDone(VIP_VI_HANDLE vi, VIP_VI_ATTRIBUTES *attrs) {
	ENTER(vi);
	return vipl_go_connect_peer_result(N(vi), 0, attrs);
}

VIP_RETURN VipConnectPeerWait(VIP_VI_HANDLE vi, VIP_VI_ATTRIBUTES *attrs) {
	ENTER(vi);
	return vipl_go_connect_peer_result(N(vi), 1, attrs);
}

/* ---- Transfers ---------------------------------------------------------- */

static VIP_RETURN post_to(VIP_VI_HANDLE vi, int recv, VIP_DESCRIPTOR *d, VIP_MEM_HANDLE mem) {
	struct vi *v;

	CHECK((v = vi_of(N(vi))) && d);
	return post(&v->q[recv], d, mem);
}

/*
 * take_locked removes and returns the next descriptor that the C half has taken from the Go half's
 * work queue, or NULL if there is none.
 */
static struct vipl_ready *take_locked(struct queue *q) {
	if (q->n == 0)
		return NULL;
	q->n--;
	if (q->recv && q->n == 0)
		waits();
	return &q->taken.ready[q->first++];
}

/*
 * lock_to_look locks a queue for a call that may find the queue empty, and returns the next taken
 * descriptor. If there is none, it hands over the sends that this thread has gathered, and those
 * gathered for the VI. It returns NULL if there is still no descriptor.
 */
static struct vipl_ready *lock_to_look(struct vi *v, struct queue *q) {
	struct vipl_ready *t;

	pthread_mutex_lock(&q->lock);
	t = take_locked(q);
	if (t)
		return t;
	hand_over_locked(q);
	if (gathering == q)
		gathering = NULL;
	t = take_locked(q);
	if (t)
		return t;
	if (gathering || (q->recv && atomic_load_explicit(&v->q[0].burst.since, memory_order_relaxed))) {
		pthread_mutex_unlock(&q->lock);
		hand_over_mine();
		hand_over(&v->q[0]);
		pthread_mutex_lock(&q->lock);
		t = take_locked(q);
	}
	return t;
}

static VIP_RETURN done(VIP_VI_HANDLE vi, int recv, VIP_DESCRIPTOR **out) {
	struct vi *v;
	struct queue *q;
	struct vipl_ready *t;
	VIP_RETURN r = VIP_SUCCESS;
	int n = 0;

	CHECK((v = vi_of(N(vi))) && out);
	q = &v->q[recv];
	t = lock_to_look(v, q);
	if (!t) {
		r = vipl_go_done(N(vi), recv, looks_locked(q), q->taken.ready, q->waiters ? 1 : TAKE, &n);
		looked_locked(q, n > 0);
		q->first = 0;
		q->n = n;
		t = take_locked(q);
	}
	if (t) {
		r = t->code;
		*out = t->d;
	} else if (r != VIP_INVALID_PARAMETER) {
		*out = NULL;
		waits();
	}
	pthread_mutex_unlock(&q->lock);
	return r;
}

static VIP_RETURN await(VIP_VI_HANDLE vi, int recv, VIP_ULONG timeout, VIP_DESCRIPTOR **out) {
	struct vi *v;
	struct queue *q;
	struct vipl_ready *t, got = {NULL, 0};
	VIP_RETURN r;

	CHECK((v = vi_of(N(vi))) && out);
	q = &v->q[recv];
	if (q->attached)
		return VIP_ERROR_RESOURCE;
	if (timeout == 0) {
		r = done(vi, recv, out);
		return r == VIP_NOT_DONE ? VIP_TIMEOUT : r;
	}
	t = lock_to_look(v, q);
	if (t) {
		r = t->code;
		*out = t->d;
		pthread_mutex_unlock(&q->lock);
		return r;
	}
	waits();
	q->waiters++;
	pthread_mutex_unlock(&q->lock);
	r = vipl_go_wait(N(vi), recv, timeout, &got);
	pthread_mutex_lock(&q->lock);
	if (q->waiters > 0)
		q->waiters--;
	pthread_mutex_unlock(&q->lock);
	if (r != VIP_INVALID_PARAMETER)
		*out = got.d;
	return r;
}

static VIP_RETURN notify(VIP_VI_HANDLE vi, int recv, VIP_PVOID context, vipl_notify f) {
	struct vi *v;
	struct queue *q;
	struct vipl_ready *t;
	VIP_RETURN r;

	ENTER((v = vi_of(N(vi))) && f);
	q = &v->q[recv];
	if (q->attached)
		return VIP_ERROR_RESOURCE;
	pthread_mutex_lock(&q->lock);
	t = take_locked(q);
	r = vipl_go_notify(N(vi), recv, context, f, t ? t->d : NULL);
	pthread_mutex_unlock(&q->lock);
	return r;
}

VIP_RETURN VipPostSend(VIP_VI_HANDLE vi, VIP_DESCRIPTOR *d, VIP_MEM_HANDLE mem) { return post_to(vi, 0, d, mem); }

VIP_RETURN VipPostRecv(VIP_VI_HANDLE vi, VIP_DESCRIPTOR *d, VIP_MEM_HANDLE mem) { return post_to(vi, 1, d, mem); }

VIP_RETURN VipSendDone(VIP_VI_HANDLE vi, VIP_DESCRIPTOR **out) { return done(vi, 0, out); }

VIP_RETURN VipRecvDone(VIP_VI_HANDLE vi, VIP_DESCRIPTOR **out) { return done(vi, 1, out); }

VIP_RETURN VipSendWait(VIP_VI_HANDLE vi, VIP_ULONG timeout, VIP_DESCRIPTOR **out) { return await(vi, 0, timeout, out); }

VIP_RETURN VipRecvWait(VIP_VI_HANDLE vi, VIP_ULONG timeout, VIP_DESCRIPTOR **out) { return await(vi, 1, timeout, out); }

VIP_RETURN VipSendNotify(VIP_VI_HANDLE vi, VIP_PVOID context, vipl_notify f) { return notify(vi, 0, context, f); }

VIP_RETURN VipRecvNotify(VIP_VI_HANDLE vi, VIP_PVOID context, vipl_notify f) { return notify(vi, 1, context, f); }

VIP_RETURN VipPostDeferredSends(VIP_VI_HANDLE vi, VIP_BOOLEAN enable_interrupt, VIP_BOOLEAN *deferred) {
	(void)enable_interrupt;
	ENTER(vi_of(N(vi)));
	if (deferred)
		*deferred = VIP_FALSE;
	return VIP_SUCCESS;
}

/* ---- Completion queues -------------------------------------------------- */

VIP_RETURN VipCreateCQ(VIP_NIC_HANDLE nic, VIP_ULONG entries, VIP_CQ_HANDLE *out) {
	uintptr_t h;
	VIP_RETURN r;

	ENTER(nic && out);
	r = vipl_go_create_cq(N(nic), entries, &h);
	if (r != VIP_SUCCESS)
		return r;
	if (cq_enter(h, N(nic)) != 0) {
		vipl_go_destroy_cq(h);
		return VIP_ERROR_RESOURCE;
	}
	*out = (VIP_CQ_HANDLE)h;
	return VIP_SUCCESS;
}

VIP_RETURN VipDestroyCQ(VIP_CQ_HANDLE cq) {
	VIP_RETURN r;

	ENTER(cq);
	r = vipl_go_destroy_cq(N(cq));
	if (r == VIP_SUCCESS)
		cq_leave(N(cq));
	return r;
}

/* live_locked returns the next taken entry, or NULL. It drops entries of VIs that were destroyed. */
static struct vipl_entry *live_locked(struct queue *q) {
	while (q->n > 0) {
		struct vipl_entry *e = &q->taken.entry[q->first++];

		q->n--;
		if (vi_of(e->vi))
			return e;
	}
	return NULL;
}

VIP_RETURN VipResizeCQ(VIP_CQ_HANDLE cq, VIP_ULONG entries) {
	struct cq *c;
	VIP_RETURN r;

	ENTER(c = cq_of(N(cq)));
	pthread_mutex_lock(&c->q.lock);
	r = entries != 0 && entries < c->q.n ? VIP_ERROR_RESOURCE : vipl_go_resize_cq(N(cq), entries);
	pthread_mutex_unlock(&c->q.lock);
	return r;
}

VIP_RETURN VipCQDone(VIP_CQ_HANDLE cq, VIP_VI_HANDLE *vi, VIP_BOOLEAN *recv) {
	struct cq *c;
	struct queue *q;
	struct vipl_entry *e;
	VIP_RETURN r = VIP_SUCCESS;
	int n = 0;

	CHECK((c = cq_of(N(cq))) && vi && recv);
	q = &c->q;
	pthread_mutex_lock(&q->lock);
	e = live_locked(q);
	if (!e) {
		if (gathering) {
			pthread_mutex_unlock(&q->lock);
			hand_over_mine();
			pthread_mutex_lock(&q->lock);
			if ((e = live_locked(q)))
				goto found;
		}
		r = vipl_go_cq_done(N(cq), looks_locked(q), q->taken.entry, q->waiters ? 1 : TAKE, &n);
		looked_locked(q, n > 0);
		q->first = 0;
		q->n = n;
		e = live_locked(q);
	}
found:
	if (e) {
		*vi = (VIP_VI_HANDLE)e->vi;
		*recv = e->recv;
	} else {
		waits();
		if (r == VIP_SUCCESS)
			r = VIP_NOT_DONE;
	}
	pthread_mutex_unlock(&q->lock);
	return r;
}

VIP_RETURN VipCQWait(VIP_CQ_HANDLE cq, VIP_ULONG timeout, VIP_VI_HANDLE *vi, VIP_BOOLEAN *recv) {
	struct cq *c;
	struct queue *q;
	struct vipl_entry *e, got;
	VIP_RETURN r;

	ENTER((c = cq_of(N(cq))) && vi && recv);
	if (timeout == 0) {
		r = VipCQDone(cq, vi, recv);
		return r == VIP_NOT_DONE ? VIP_TIMEOUT : r;
	}
	q = &c->q;
	pthread_mutex_lock(&q->lock);
	e = live_locked(q);
	if (e) {
		*vi = (VIP_VI_HANDLE)e->vi;
		*recv = e->recv;
		pthread_mutex_unlock(&q->lock);
		return VIP_SUCCESS;
	}
	waits();
	q->waiters++;
	pthread_mutex_unlock(&q->lock);
	r = vipl_go_cq_wait(N(cq), timeout, &got);
	pthread_mutex_lock(&q->lock);
	if (q->waiters > 0)
		q->waiters--;
	pthread_mutex_unlock(&q->lock);
	if (r == VIP_SUCCESS) {
		*vi = (VIP_VI_HANDLE)got.vi;
		*recv = got.recv;
	}
	return r;
}

VIP_RETURN VipCQNotify(VIP_CQ_HANDLE cq, VIP_PVOID context, vipl_cq_notify f) {
	struct cq *c;
	struct vipl_entry *e;
	VIP_RETURN r;

	ENTER((c = cq_of(N(cq))) && f);
	pthread_mutex_lock(&c->q.lock);
	e = live_locked(&c->q);
	r = vipl_go_cq_notify(N(cq), context, f, e ? e->vi : 0, e ? e->recv : 0);
	pthread_mutex_unlock(&c->q.lock);
	return r;
}

VIP_RETURN VipAddTagCQ(VIP_CQ_HANDLE cq, VIP_EVENT_HANDLE *event, VIP_ULONG tag, VIP_ULONG priority) {
	(void)event, (void)tag, (void)priority;
	ENTER(cq_of(N(cq)));
	return VIP_ERROR_NOT_SUPPORTED;
}

VIP_RETURN VipRemoveTagCQ(VIP_CQ_HANDLE cq, VIP_EVENT_HANDLE event, VIP_ULONG tag) {
	(void)event, (void)tag;
	ENTER(cq_of(N(cq)));
	return VIP_ERROR_NOT_SUPPORTED;
}

/* ---- Errors, management, names ------------------------------------------ */

VIP_RETURN VipErrorCallback(VIP_NIC_HANDLE nic, VIP_PVOID context, vipl_error f) {
	ENTER(nic);
	return vipl_go_error_callback(N(nic), context, f);
}

VIP_RETURN VipQuerySystemManagementInfo(VIP_NIC_HANDLE nic, VIP_ULONG type, VIP_PVOID info) {
	VIP_AUTODISCOVERY_LIST *l = info;

	ENTER(nic && info && type == VIP_SMI_AUTODISCOVERY);
	return vipl_go_autodiscovery(N(nic), l->ADAddrArray, &l->NumAdAddrs);
}

VIP_RETURN VipNSInit(VIP_NIC_HANDLE nic, VIP_PVOID info) {
	(void)info;
	ENTER(nic);
	return vipl_go_ns_init(N(nic));
}

VIP_RETURN VipNSGetHostByName(VIP_NIC_HANDLE nic, VIP_CHAR *name, VIP_NET_ADDRESS *addr, VIP_ULONG index) {
	ENTER(nic && name && addr);
	return vipl_go_ns_by_name(N(nic), name, addr, index);
}

VIP_RETURN VipNSGetHostByAddr(VIP_NIC_HANDLE nic, VIP_NET_ADDRESS *addr, VIP_CHAR *name, VIP_ULONG *room) {
	ENTER(nic && addr && name && room);
	return vipl_go_ns_by_addr(N(nic), addr, name, room);
}

VIP_RETURN VipNSShutdown(VIP_NIC_HANDLE nic) {
	ENTER(nic);
	return vipl_go_ns_shutdown(N(nic));
}

/* ---- Pointers of the program -------------------------------------------- */

VIP_PVOID VipGetUserData(VIP_VI_HANDLE vi) {
	struct vi *v = vi_of(N(vi));

	return v ? atomic_load(&v->user) : NULL;
}

void VipSetUserData(VIP_VI_HANDLE vi, VIP_PVOID data) {
	struct vi *v = vi_of(N(vi));

	if (v)
		atomic_store(&v->user, data);
}
