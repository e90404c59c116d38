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

/* Time limit for an event, in milliseconds. A later event is a fault. */
#define PATIENCE 10000

/* next_event returns the next event of the channel, which the caller must acknowledge, or NULL. */
struct rdma_cm_event *next_event(struct rdma_event_channel *ch, int milliseconds);

/* take_event expects an event of that type, acknowledges it, and returns its status. It keeps an
 * earlier connection request for next_event. */
int take_event(struct rdma_event_channel *ch, enum rdma_cm_event_type want);

/* expect_silence expects that no event except a request arrives soon. */
void expect_silence(struct rdma_event_channel *ch);

/* resolve creates an identifier that is ready to connect to a port of this host. */
struct rdma_cm_id *resolve(struct rdma_event_channel *ch, uint16_t port);

/* listen_at creates a listener at 127.0.0.1; for port 0 the system chooses one. */
struct rdma_cm_id *listen_at(struct rdma_event_channel *ch, uint16_t port, int backlog);

/* make_end creates the objects that an identifier needs to be connected. With shared it has a
 * shared receive queue. unmake_end destroys them all, even if the queue pair was already destroyed.
 * */
void make_end(struct end *e, struct rdma_cm_id *id, bool shared);
void unmake_end(struct end *e);

/* dial connects, and accept_request answers a request. Private data of n bytes goes with it. */
int dial(struct end *e, const void *private_data, uint8_t n);
int accept_request(struct end *e, const void *private_data, uint8_t n);

/* post_receive and post_send use size bytes of the memory from an offset on; every request is
 * signalled. post_remote is a Write or a Read. */
int post_receive(struct end *e, uint64_t id, int offset, int size);
int post_send(struct end *e, uint64_t id, int offset, int size);
int post_remote(struct end *e, uint64_t id, enum ibv_wr_opcode op, int size, uint64_t addr, uint32_t rkey);

/* take_completion expects a completion of that identifier and status. It returns its length. */
int take_completion(struct end *e, uint64_t id, enum ibv_wc_status want);

/* readable reports whether the descriptor becomes readable within that time. */
bool readable(int fd, int milliseconds);

struct sockaddr_in local_address(uint16_t port);

#endif
