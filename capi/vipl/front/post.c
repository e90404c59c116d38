/* Posting. */
#include "front.h"

VIP_RETURN post(struct queue *q, VIP_DESCRIPTOR *d, VIP_MEM_HANDLE h) {
	struct vipl_post one = {d, h};
	VIP_RETURN r;

	pthread_mutex_lock(&q->lock);
	r = vipl_go_post(q->handle, q->recv, &one, 1);
	pthread_mutex_unlock(&q->lock);
	return r;
}
