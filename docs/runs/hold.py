"""Hold the slices' rows of connect_1 so that a vote waits while its lease is renewed."""
import json, glob, os, time, psycopg, re, sys
def url():
    for f in glob.glob('/proc/[0-9]*/environ'):
        try: env=open(f,'rb').read().decode(errors='replace').split('\0')
        except OSError: continue
        env=dict(e.split('=',1) for e in env if '=' in e)
        if 'RATCHET_FAULTS' in env and '/points/servers-' in env['RATCHET_FAULTS']:
            v=env.get('AIRFLOW_CONN_RATCHET_LEDGER')
            if v:
                d=json.loads(v)
                return f"postgresql://{d['login']}:{d['password']}@{d['host']}:{d['port']}/{d['schema']}"
    return None
while True:
    u=url()
    if not u: time.sleep(1); continue
    try:
        with psycopg.connect(u) as c:
            n=len(c.execute("select 1 from ratchet.slices where pipeline='connect_1' for update").fetchall())
            if n: print(time.strftime('%X'), n, flush=True)
            time.sleep(4 if n else 0.3); c.rollback()
        time.sleep(0.7)
    except Exception as e:
        print(time.strftime('%X'), str(e)[:150], flush=True); time.sleep(1)
