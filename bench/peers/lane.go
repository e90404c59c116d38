package main

// A lane is a connection of a stream, with outstanding messages.
type lane interface {
	// post posts the messages of a doorbell.
	post() error

	// reap takes the ready completions and returns their number. If wait is true, reap waits for at
	// least one completion.
	reap(wait bool) (int, error)

	// finish sends a last message and waits for the answer. The answer arrives after all earlier
	// messages were placed.
	finish() error

	// settle takes the completion of the message sent by finish.
	settle() error
}

// window is the number of outstanding doorbells on all connections together, if there are many. The
// connections take turns.
const window = 64

// measured first streams for an eighth of m.Time without measuring, to fill pools and open the
// congestion window, and then measures. await waits for a completion on any lane and returns its
// index.
func measured(m measure, lanes []lane, await func() (int, error)) (result, error) {
	run := func(m measure) (result, error) { return streamOne(m, lanes[0]) }
	if len(lanes) > 1 {
		run = func(m measure) (result, error) { return streamMany(m, lanes, await) }
	}
	warm := m
	warm.Time = m.Time / 8
	if _, err := run(warm); err != nil {
		return result{}, err
	}
	return run(m)
}

func streamOne(m measure, l lane) (result, error) {
	w := watch(m.Time, every(m.Size))
	out, total := 0, 0
	reap := func() error {
		n, err := l.reap(m.Wait)
		out -= n
		total += n
		return err
	}
	for !w.up(m.Bell) {
		for out+m.Bell > m.Depth {
			if err := reap(); err != nil {
				return result{}, err
			}
		}
		if err := l.post(); err != nil {
			return result{}, err
		}
		out += m.Bell
	}
	for out > 0 {
		if err := reap(); err != nil {
			return result{}, err
		}
	}
	if err := l.finish(); err != nil {
		return result{}, err
	}
	r := w.result(total, m.Size)
	return r, l.settle()
}

func streamMany(m measure, lanes []lane, await func() (int, error)) (result, error) {
	w := watch(m.Time, every(m.Size))
	outs := make([]int, len(lanes))
	out, total, turn := 0, 0, 0
	post := func(i int) error {
		outs[i] += m.Bell
		out += m.Bell
		return lanes[i].post()
	}
	for ; turn < min(len(lanes), window); turn++ {
		if err := post(turn); err != nil {
			return result{}, err
		}
	}
	for out > 0 {
		i, err := await()
		if err != nil {
			return result{}, err
		}
		outs[i]--
		out--
		total++
		i = turn % len(lanes)
		turn++
		if outs[i]+m.Bell <= m.Depth && !w.up(m.Bell) {
			if err := post(i); err != nil {
				return result{}, err
			}
		}
	}
	for _, l := range lanes {
		if err := l.finish(); err != nil {
			return result{}, err
		}
		if err := l.settle(); err != nil {
			return result{}, err
		}
	}
	return w.result(total, m.Size), nil
}
