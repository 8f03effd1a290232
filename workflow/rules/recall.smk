# Before further prefills, so that few prefill files are on disk at a time.
rule recall:
    input:
        unpack(FLOW.inputs("recall")),
    output:
        f"{RESULTS}/cells/{{study}}/{{model}}/{{arm}}/{{group}}.jsonl",
    log:
        f"logs/{RUN}/recall/{{study}}/{{model}}/{{arm}}/{{group}}.log",
    wildcard_constraints:
        study="needle|passkey",
    priority: 10
    conda:
        "../../environment.yml"
    threads: FLOW.threads
    resources:
        mem_mb=FLOW.memory("recall"),
        gpu=FLOW.gpus(),
    params:
        spec=FLOW.specs("recall"),
        code=FLOW.codes("recall"),
        named=FLOW.named_inputs("recall"),
    shell:
        "kvatlas cell --spec {params.spec:q} --code {params.code} --threads {threads} --input {params.named:q} --output {output} > {log} 2>&1"
