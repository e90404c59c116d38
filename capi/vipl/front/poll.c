/*
 * A call of the Go half costs more than a check of a queue there. So the Go half checks several
 * times before it returns nothing to a program that polls one queue and does hardly anything else.
 */
#include "front.h"

#define EAGER 16   /* empty checks in quick succession after which a program counts as polling */
#define SOON 1000  /* largest ns between two calls of a polling program */
#define SPELL 300  /* largest ns of all checks of one call */
#define MOST 8     /* largest number of checks of one call */

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
