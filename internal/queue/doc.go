// Package queue has the two queues every engine needs: the work queue, into
// which requests are posted and out of which they complete strictly in
// posting order, and the completion queue, which many work queues report to.
// It knows no protocol: what is posted and what a completion looks like are
// type parameters.
//
// All methods are safe for concurrent use. Each queue has one mutex of its
// own, held for a few instructions; operations exist in batches, so that a
// burst of messages takes it once.
package queue
