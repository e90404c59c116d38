package nvmecore

import (
	"slices"

	"viaduct/internal/wire/nvmewire"
)

// events holds the changed namespaces to report, and the waiting event requests.
type events struct {
	enabled uint32 // kinds of events that the host enabled, one bit each
	held    []nvmewire.SQE
	list    []uint32 // changed namespaces since the log page was read
	sent    bool     // an event for list was sent, and the host has not read the log page
}

// eventRequest holds an event request until there is an event. [NVME-AER-1]
func (c *controller) eventRequest(q *Queue, s *nvmewire.SQE) Step {
	if len(c.held) == MaxEvents {
		return answer(nvmewire.EventLimitExceeded)
	}
	q.pending-- // a held request does not count as pending
	c.held = append(c.held, *s)
	c.deliver()
	return Step{Kind: Hold}
}

func (c *controller) namespaceChanged(id uint32) {
	if c.discovery || c.csts&statusReady == 0 {
		return
	}
	if !slices.Contains(c.list, id) {
		c.list = append(c.list, id)
	}
	c.deliver()
}

// deliver sends a single event for all changes, if the host has sent an event request and enabled
// events, and has read the log page since the last event.
func (c *controller) deliver() {
	q := c.queues[0]
	if len(c.list) == 0 || c.sent || len(c.held) == 0 || c.enabled&nvmewire.EventNamespaces == 0 ||
		q == nil || q.ending {
		return
	}
	s := c.held[0]
	c.held = slices.Delete(c.held, 0, 1)
	c.sent = true
	q.pending++
	c.t.outputs = append(c.t.outputs,
		Output{Queue: q, SQE: s, CQE: q.Respond(&s, nvmewire.NoticeNamespaces, nvmewire.OK)})
}

// changes returns the log page of changed namespaces. Unless retain is set, the list is cleared,
// and the next event may be sent.
func (c *controller) changes(retain bool) []byte {
	slices.Sort(c.list)
	page := nvmewire.AppendList(nil, c.list)
	if !retain {
		c.list, c.sent = nil, false
	}
	return page
}
