/*
 * This is the interface between the C half of libvipl (front/) and its Go half. The Go half gets
 * handles as numbers, never as pointers, because Go must not treat a stale handle as a pointer.
 */
#ifndef VIPL_ENGINE_H
#define VIPL_ENGINE_H

#include <stdint.h>
#include "vipl.h"

/* A handle: index, kind and generation. */
#define VIPL_INDEX(h) ((unsigned)((h) & 0xFFFFF))
#define VIPL_KIND(h) ((unsigned)((h) >> 20 & 0xF))

enum { VIPL_NIC = 1, VIPL_PTAG, VIPL_VI, VIPL_CQ, VIPL_CONN };

/* A descriptor to be posted. */
struct vipl_post {
	VIP_DESCRIPTOR *d;
	VIP_MEM_HANDLE handle;
};

/* A descriptor that was taken from its queue, with the return code of its Done call. */
struct vipl_ready {
	VIP_DESCRIPTOR *d;
	int32_t code;
};

/* An entry that was taken from a completion queue. */
struct vipl_entry {
	uintptr_t vi;
	int32_t recv;
};

typedef void (*vipl_notify)(VIP_PVOID, VIP_NIC_HANDLE, VIP_VI_HANDLE, VIP_DESCRIPTOR *);
typedef void (*vipl_cq_notify)(VIP_PVOID, VIP_NIC_HANDLE, VIP_VI_HANDLE, VIP_BOOLEAN);
typedef void (*vipl_error)(VIP_PVOID, VIP_ERROR_DESCRIPTOR *);

/* The Go half calls the program's handlers by these functions in front/handlers.c. */
void vipl_call_notify(vipl_notify f, void *context, uintptr_t nic, uintptr_t vi, void *d);
void vipl_call_cq_notify(vipl_cq_notify f, void *context, uintptr_t nic, uintptr_t vi, int recv);
void vipl_call_error(vipl_error f, void *context, uintptr_t nic, uintptr_t vi, uintptr_t cq, void *d,
	uint64_t op, uint32_t resource, uint32_t code);

#endif
