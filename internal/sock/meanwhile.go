package sock

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// What is to be done a moment from now, such as closing a connection whose peer is about to
// end its direction, can be left to goroutines that poll for something else: where
// connections are made one after the other that is the next one's. A goroutine of its own
// would be woken by a thread that takes the other end's processor, and waiting here would
// put off the next connection. A timer does what is left.

const (
	// meanwhileTick is how often the timer looks, and meanwhileLimit how long something
	// may take at least before it is late.
	meanwhileTick  = time.Millisecond
	meanwhileLimit = 2 * meanwhileTick

	// maxMeanwhile bounds how much longer a poll takes.
	maxMeanwhile = 8
)

// A chore is something to be done in a moment. See Meanwhile.
type chore struct {
	try   func() bool
	late  func()
	until time.Time
}

// chores are those that are not done yet.
var chores struct {
	sync.Mutex
	list  []chore
	taken int          // how many are being tried, and are not in the list
	n     atomic.Int32 // the length of list
	timed bool         // the timer is to come
	fresh bool         // one was added since the timer came
}

// Meanwhile has try called until it reports that it is done: at once, by goroutines that
// poll, and by a timer. late is called in place of that if it takes longer than some
// milliseconds, or if there is too much to be done.
//
// Neither may block, or take a lock that is held by callers of Soon and its kind. They are
// called by one goroutine at a time.
func Meanwhile(try func() bool, late func()) {
	if !try() && !addChore(chore{try, late, time.Now().Add(meanwhileLimit)}) {
		late()
	}
}

// addChore is false if there are as many as there may be, or a poll is of no use.
func addChore(c chore) bool {
	if runtime.GOMAXPROCS(0) == 1 {
		return false
	}
	chores.Lock()
	defer chores.Unlock()
	if len(chores.list)+chores.taken >= maxMeanwhile {
		return false
	}
	chores.list = append(chores.list, c)
	chores.n.Store(int32(len(chores.list)))
	chores.fresh = true
	timeChoresLocked()
	return true
}

// timeChoresLocked sets the timer. It goes on for as long as connections end: one that is
// set anew wakes the thread that sleeps at the poller, as it comes before all others.
func timeChoresLocked() {
	if chores.timed || len(chores.list) == 0 && !chores.fresh {
		return
	}
	chores.timed, chores.fresh = true, false
	time.AfterFunc(meanwhileTick, func() {
		doChores(time.Now())
		chores.Lock()
		defer chores.Unlock()
		chores.timed = false
		timeChoresLocked()
	})
}

// meanwhile is called by goroutines that poll.
func meanwhile() {
	if chores.n.Load() > 0 {
		doChores(time.Time{})
	}
}

// doChores tries what there is. What is late now is done otherwise.
func doChores(now time.Time) {
	chores.Lock()
	list := chores.list
	chores.list = nil
	chores.n.Store(0)
	chores.taken += len(list)
	chores.Unlock()
	n := len(list)
	list = slices.DeleteFunc(list, func(c chore) bool {
		if c.try() {
			return true
		}
		if now.After(c.until) {
			c.late()
			return true
		}
		return false
	})
	chores.Lock()
	defer chores.Unlock()
	chores.taken -= n
	chores.list = append(list, chores.list...)
	chores.n.Store(int32(len(chores.list)))
}
