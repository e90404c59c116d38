//go:build !race

package transport

const tinyBuffers = 3 // the least there may be
