package iwarp

import "viaduct/internal/frameio"

// engine is the QueuePair as a [frameio.Protocol], called in the roles of frameio.
type engine QueuePair

var (
	_ frameio.Protocol = (*engine)(nil)
	_ frameio.Planner  = (*engine)(nil)
)

// Fill implements [frameio.Protocol].
func (e *engine) Fill(b *frameio.Batch) { e.tx.fill(b) }

// Sent implements [frameio.Protocol].
func (e *engine) Sent() { e.tx.sent() }

// Receive implements [frameio.Protocol].
func (e *engine) Receive(p []byte, mayPlan bool) (n, missing int, err error) {
	return e.rx.receive(p, mayPlan)
}

// Plan implements [frameio.Planner]: it adds the memory for the missing and for the predicted
// payload.
func (e *engine) Plan(p *frameio.Plan) { e.rx.Plan(p) }

// Landed implements [frameio.Planner].
func (e *engine) Landed(p *frameio.Plan, frame, behind int) (taken, missing int, err error) {
	return e.rx.landed(p, frame, behind)
}

// Drained implements [frameio.Protocol]. It does nothing, because iWARP sends no acknowledgements.
func (e *engine) Drained() {}

// Deliver implements [frameio.Deliverer]: it calls the handlers of the completion queues.
func (e *engine) Deliver() (keep bool) {
	(*QueuePair)(e).callHandlers()
	return e.recvs.keeps()
}
