"""The fault driver: a real server under a seeded load, with faults from a seeded schedule.

    python -m tests.faults --minutes 30 --seed 7          # every kind of fault, TP=1 and TP=2
    python -m tests.faults --losses 1000 --faults kill    # lost workers only
    python -m tests.faults.overload                       # four times the sustainable rate
    python -m tests.faults.cancellations                  # 64 disconnects per second

Each answer under faults is compared with the answer to the same request without faults.
"""
