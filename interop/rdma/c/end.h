/* One end of a connection: an identifier, a queue pair, and memory to send from and receive to. */
#ifndef END_H
#define END_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stdint.h>

#define MEMORY 4096
#define DEPTH 16

struct end {
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_srq *srq; /* NULL: the queue pair has a receive queue of its own */
	struct ibv_mr *mr;
	char memory[MEMORY];
};

/* Time limit for an event or a completion, in milliseconds. A later one is a fault. */
#define PATIENCE 50000

/* next_event returns the next event of the channel, which the caller must acknowledge, or NULL if
 * none arrives in time. */
struct rdma_cm_event *next_event(struct rdma_event_channel *ch, int milliseconds);

/* take_event expects the next event to be of type want, acknowledges the event and returns its
 * status, or -1 if no event arrives within PATIENCE. A connection request that arrives before the
 * event is kept for next_event. */
int take_event(struct rdma_event_channel *ch, enum rdma_cm_event_type want);

/* expect_silence expects that no event except a connection request arrives within 50 ms. */
void expect_silence(struct rdma_event_channel *ch);

/* resolve creates an identifier with a resolved route, ready to connect to a port of 127.0.0.1. */
struct rdma_cm_id *resolve(struct rdma_event_channel *ch, uint16_t port);

/* listen_at creates a listener at 127.0.0.1; for port 0 the system chooses one. */
struct rdma_cm_id *listen_at(struct rdma_event_channel *ch, uint16_t port, int backlog);

/* make_end creates the objects that the identifier needs for a connection; if shared is true, the
 * queue pair uses a shared receive queue. unmake_end destroys these objects and the identifier. The
 * queue pair may be destroyed already. */
void make_end(struct end *e, struct rdma_cm_id *id, bool shared);
void unmake_end(struct end *e);

/* dial returns the result of rdma_connect, and accept_request that of rdma_accept. Both send n bytes
 * of private data. */
int dial(struct end *e, const void *private_data, uint8_t n);
int accept_request(struct end *e, const void *private_data, uint8_t n);

/* post_receive and post_send use size bytes of the memory from offset on. post_remote posts an RDMA
 * Write or Read (op) that uses the first size bytes. All sends are signalled. */
int post_receive(struct end *e, uint64_t id, int offset, int size);
int post_send(struct end *e, uint64_t id, int offset, int size);
int post_remote(struct end *e, uint64_t id, enum ibv_wr_opcode op, int size, uint64_t addr, uint32_t rkey);

/* take_completion expects the next completion to have this identifier and status. It returns the
 * completion's length, or -1 if no completion arrives within PATIENCE. */
int take_completion(struct end *e, uint64_t id, enum ibv_wc_status want);

/* readable reports whether the file descriptor becomes readable within that time. */
bool readable(int fd, int milliseconds);

struct sockaddr_in local_address(uint16_t port);

#endif
