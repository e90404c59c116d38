// Package queue has the two queues every engine needs: the work queue, whose requests complete
// strictly in posting order, and the completion queue, shared by many work queues. It knows no
// protocol: the types of requests and completions are type parameters.
//
// All methods are safe for concurrent use, except the methods of Ring and where a method says
// otherwise. Each queue has a mutex, held for a few instructions. Batch operations lock the mutex
// once for a burst of messages.
package queue
