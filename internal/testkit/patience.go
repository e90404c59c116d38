package testkit

import "time"

// Patience is how long a test waits for what has to happen. It is a multiple of
// what anything takes on a machine that gives the test a tenth of its time, since it
// only matters to a test that fails.
const Patience = time.Minute
