"""Constants of the model step (model_step.py) that its compiled form shares."""

WEIGHTY = 0.02  # a token is an extra when its own penalty would move its logit by more than this
MOST_EXTRAS = 4096
ABSENT = -1e30  # logit of an absent variable; finite, so that differences stay finite
NEWTON_STEPS = 60
SURE = 0.5  # a gap that falls to this share of the last one needs no search
CG_TOL, CG_ITERATIONS = 0.01, 60  # tolerance of a Newton step's linear system
SMALL = 1e-4  # mass up to which a variable may grow exponentially in one step
SEGMENT_STEPS, SEGMENT_WIDTH = 30, 1e-3
FAR = 60.0  # nats beyond which the plain form of a gap is used; e^-60 is negligible
