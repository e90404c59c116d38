/*
 * Polling. The way into the Go half and back costs more than a look at a queue there. A
 * program that looks at one queue again and again, and does hardly anything else, has the
 * Go half look several times before that comes back with nothing.
 */
#include "front.h"

#define EAGER 16   /* looks in vain, one soon after the other, from which a program polls */
#define SOON 1000  /* ns between two looks of a program that polls at most */
#define SPELL 300  /* ns that its looks may take in all */
#define MOST 8     /* looks */

int looks_locked(struct queue *q) {
	struct poll *p = &q->poll;

	p->looks = 1;
	if (p->vain < EAGER)
		return 1;
	p->began = nanoseconds();
	if (p->began - p->ended > SOON)
		p->vain = 0;
	else
		p->looks = p->fit;
	return p->looks;
}

void looked_locked(struct queue *q, int found) {
	struct poll *p = &q->poll;
	uint64_t took;

	if (found || p->vain < EAGER) {
		if (!found && ++p->vain == EAGER) {
			p->ended = nanoseconds();
			p->fit = 1;
		}
		return;
	}
	p->ended = nanoseconds();
	took = (p->ended - p->began) / p->looks + 1;
	p->fit = took > SPELL ? 1 : SPELL / took < MOST ? SPELL / took : MOST;
}
